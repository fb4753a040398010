//! From a plan to a pipeline: the only module that knows all kinds of services, models and environments.

mod contamination;
mod environments;
mod fingerprint;
mod hosted;
mod pipeline;
mod prices;
mod remote;
mod service;
mod teacher;
mod warm_start;

pub use contamination::{ComparedEnvironment, contamination};
pub use environments::{components, find_python, fit_epochs, native, python};
pub use fingerprint::fingerprints;
pub use hosted::hosted;
pub use pipeline::{StandaloneShadowTrainer, check_samplers, oracle, parts, restore_memories, shadow};
pub use prices::{metered_service, prices};
pub use remote::{WorkerLoader, move_environments_to_workers, probe_broker};
pub use service::{ModelService, check_key, no_model, probe_service, renderer, service};
pub use teacher::{reference, teacher_context, teacher_service};
pub use warm_start::FirstWeights;
