//! Environments, chat renderers and the registry.
//!
//! An environment is loaded by its id with [`native::load`] and shared as an immutable value; a renderer by its name
//! with [`render::renderer`]. Both answer a wrong name or argument with an error that says what would be right. The
//! native ones wait for nothing but the [`Oracle`](minds_core::environment::Oracle) that a reward asks; those that are
//! Python packages ([`worker`]) have processes and threads of their own.

pub mod args;
pub mod demonstrations;
pub mod error;
mod jinja;
pub mod native;
pub mod parse;
pub mod render;
mod rows;
pub mod worker;

pub use error::EnvError;
pub use render::RenderError;
