//! A world in which every latency, failure and gate is scripted, and every request is recorded.

mod environment;
mod service;
mod world;

pub use environment::{Judge, ScriptedEnvironment, ScriptedRenderer};
pub use service::{ServiceRecord, trained};
pub use world::{Run, World, local, reward_by_member, reward_in_every, seconds};
