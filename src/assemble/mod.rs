//! From a plan to a pipeline: the only module that knows all kinds of services, models and environments.

mod environments;
mod fingerprint;
mod pipeline;
mod service;

pub use environments::{components, find_python, native, python};
pub use fingerprint::fingerprints;
pub use pipeline::{
    StandaloneShadowTrainer, check_samplers, oracle, parts, reference, restore_memories, shadow,
};
pub use service::{ModelService, check_key, model, no_model, probe_server, renderer, renderer_name, service};
