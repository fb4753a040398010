//! From a plan to a line: the only place that knows which kinds of service, model and environment there are.

mod line;
mod service;

pub use line::{
    Measuring, check_fit, components, evaluation, judge, options, parts, recall, reference, retry, shadow,
};
pub use service::{Ready, model, service};
