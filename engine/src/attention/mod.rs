//! Causal attention of grouped query heads.

mod backward;
mod forward;

pub(crate) use backward::{SavedAttention, SequenceNode, attend_backward};
pub(crate) use forward::{SequenceQueries, attend};
