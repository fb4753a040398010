//! The wire forms of the Tinker API.
//!
//! JSON is read leniently and written fully: a field that an old SDK omits or sends as `null` takes its default, except
//! for the numbers of an optimizer step, where `null` is rejected. Unknown fields are ignored. Written JSON contains
//! the defaults and the `type`. Newer SDKs use protobuf ([`proto`]) for passes and results; its tensors share the
//! memory of the body.

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

/// Path prefix of every API endpoint.
pub const PREFIX: &str = "/api/v1";

/// Media type of JSON bodies.
pub const JSON: &str = "application/json";

/// Media type of protobuf bodies.
pub const PROTOBUF: &str = "application/x-protobuf";

/// HTTP header that carries the API key.
pub const API_KEY_HEADER: &str = "x-api-key";
