//! Which rollouts a run writes.

use serde::{Deserialize, Serialize};

/// Which of the trained rollouts a run writes into its folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WrittenRollouts {
    /// All trained rollouts of every step.
    #[default]
    All,
    /// One group of each environment and step, drawn by the step and the id of the group.
    Sample,
    /// No rollouts of any step.
    Off,
}

impl WrittenRollouts {
    /// What the run folder has of each step, as a phrase.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::All => "all rollouts",
            Self::Sample => "one group of each environment",
            Self::Off => "no rollouts",
        }
    }
}
