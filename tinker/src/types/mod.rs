//! The wire forms of the Tinker API.
//!
//! JSON is read leniently and written fully: every field that an old SDK leaves out or sends as `null` has its
//! default, but for the numbers of an optimizer step, of which `null` is refused. Unknown fields are passed over, and
//! what is written carries its defaults and its `type`. Protobuf ([`proto`]) is what newer SDKs use for passes and
//! results; its tensors share the memory of the body.

mod data;
mod futures;
mod literal;
mod models;
pub mod numbers;
mod path;
pub mod proto;
mod rest;
mod sampling;
mod sessions;
mod training;
mod weights;

pub use data::*;
pub use futures::*;
pub use literal::tag;
pub use models::*;
pub use path::{CheckpointKind, CheckpointPath, PathError};
pub use rest::*;
pub use sampling::*;
pub use sessions::*;
pub use training::*;
pub use weights::*;

/// Where every address of the API begins.
pub const PREFIX: &str = "/api/v1";

/// Media type of JSON bodies.
pub const JSON: &str = "application/json";

/// Media type of protobuf bodies.
pub const PROTOBUF: &str = "application/x-protobuf";

/// Header that carries the key.
pub const API_KEY_HEADER: &str = "x-api-key";
