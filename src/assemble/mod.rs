//! From a plan to a line: the only place that knows which kinds of service, model and environment there are.

mod environments;
mod line;
mod service;

pub use environments::components;
pub use line::{Measuring, check_fit, evaluation, judge, options, parts, recall, reference, retry, shadow};
pub use service::{Ready, model, service};
