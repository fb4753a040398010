//! Causal attention of grouped query heads.

mod backward;
mod forward;

pub(crate) use backward::{Attended, Node, attend_backward};
pub(crate) use forward::{Queries, attend};
