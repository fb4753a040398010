//! From a plan to a line: the only place that knows which kinds of service, model and environment there are.

mod environments;
mod fingerprint;
mod line;
mod service;

pub use environments::{components, find_python, native, python};
pub use fingerprint::fingerprints;
pub use line::{
    Measuring, check_samplers, evaluation, judge, options, parts, recall, reference, retry, shadow,
};
pub use service::{Ready, check_key, model, no_model, reach, renderer, renderer_name, service};
