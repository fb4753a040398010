//! The guarded HTTP listener of every server in this workspace.
//!
//! [`serve`] bounds the connections and how long one may be idle, and stops gracefully. [`AccessGuard`] decides which
//! requests are answered: by token, and by the `Host` and `Origin` that a browser sends. Each server states its limits
//! and words its refusals.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::{Router, routing::get};
//! use minds_http::{ConnectionLimits, serve};
//! use std::time::Duration;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let router = Router::new().route("/", get(|| async { "hello" }));
//! let limits = ConnectionLimits { connections: 64, head_timeout: Duration::from_secs(10) };
//! let stop = async {}; // at once
//! serve(&listener, router, limits, stop).await?;
//! # Ok(())
//! # })
//! # }
//! ```

mod access;
mod listen;
mod token;

pub use access::{AccessError, AccessGuard};
pub use listen::{ConnectionLimits, serve};
pub use token::AccessToken;
