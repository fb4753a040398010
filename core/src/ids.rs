//! Identifiers of what travels through the pipeline.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A token id of the model's vocabulary.
pub type Token = u32;

/// Number of a group, counted from 0 in the order in which groups are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

/// One rollout: the `member`-th of its group, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RolloutId {
    /// The group that this rollout belongs to.
    pub group: GroupId,
    /// Position within the group.
    pub member: u32,
}

impl fmt::Display for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.group, self.member)
    }
}

/// Which item of which environment component a group samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ItemKey {
    /// Index of the component in the config's list of environments.
    pub component: u16,
    /// Index of the item in that component's data.
    pub item: u64,
}

/// Number of optimizer steps behind a set of weights: version 0 is the start, version `n` came out of step `n - 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyVersion(pub u64);

impl PolicyVersion {
    /// The version after the next optimizer step.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Steps from `sampled` to `self`, or `None` when `sampled` lies in the future, which is a bug of the pipeline.
    #[must_use]
    pub fn staleness(self, sampled: Self) -> Option<u64> {
        self.0.checked_sub(sampled.0)
    }
}

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}
