//! Environments, chat renderers and the registry.
//!
//! An environment is asked for by its id with [`registry::load`] and shared as an immutable value; a renderer by its
//! name with [`render::renderer`]. Both answer a wrong name or argument with an error that says what would be right.
//! Nothing here waits for anything but the [`Oracle`](minds_core::environment::Oracle) that a reward asks.

pub mod args;
pub mod error;
pub mod native;
pub mod parse;
pub mod registry;
pub mod render;

pub use error::EnvError;
pub use render::RenderError;
