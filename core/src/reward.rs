//! Rewards: a number within bounds, or the error that explains why there is none. A failure never becomes a number.

use crate::chat::PromptError;
use crate::service::BackendError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// A reward that is guaranteed to lie within ±[`Reward::MOST`].
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f32", into = "f32")]
pub struct Reward(f32);

/// A reward that is NaN, infinite or too large.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[error("{0:?} does not lie between -1e9 and 1e9")]
pub struct RewardOutOfRange(pub f32);

impl Reward {
    /// Largest reward. Sums of squares of larger ones could overflow in training, which could not name the environment.
    pub const MOST: f32 = 1e9;

    /// Takes a number within the bounds.
    ///
    /// # Errors
    /// Gives back what is NaN, infinite or too large.
    pub fn new(value: f32) -> Result<Self, RewardOutOfRange> {
        if value.abs() <= Self::MOST { Ok(Self(value)) } else { Err(RewardOutOfRange(value)) }
    }

    /// The reward as a number.
    #[must_use]
    pub fn get(self) -> f32 {
        self.0
    }
}

impl TryFrom<f32> for Reward {
    type Error = RewardOutOfRange;
    fn try_from(value: f32) -> Result<Self, RewardOutOfRange> {
        Self::new(value)
    }
}

impl From<Reward> for f32 {
    fn from(reward: Reward) -> f32 {
        reward.0
    }
}

/// Values that explain a reward, by name.
pub type Metrics = BTreeMap<String, f64>;

/// The mean of each metric over the entries that have it.
#[must_use]
pub fn means<'a>(all: impl IntoIterator<Item = &'a Metrics>) -> Metrics {
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (name, value) in all.into_iter().flatten() {
        let (sum, count) = sums.entry(name).or_default();
        *sum += value;
        *count += 1.0;
    }
    sums.into_iter().map(|(name, (sum, count))| (name.to_owned(), sum / count)).collect()
}

/// A reward with the metrics that explain it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The reward of the rollout.
    pub reward: Reward,
    /// The values it was computed from, by name.
    pub metrics: Metrics,
}

/// Why a rollout has no reward, by what the pipeline can do about it.
#[derive(Clone, Debug, Error, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "why", rename_all = "snake_case")]
pub enum RewardError {
    /// A required service failed: the same scoring may succeed if it is tried again.
    #[error("the service failed while scoring: {0}")]
    Service(String),
    /// A required service has not answered within the longest wait allowed for it.
    #[error("the service did not answer while scoring: {0}")]
    Away(String),
    /// Scoring took longer than its limit.
    #[error("scoring took longer than {0} s")]
    TimedOut(u64),
    /// The environment's own code failed on this item.
    #[error("the environment failed: {0}")]
    Environment(String),
    /// Nothing in the run can answer what the reward queries. Every retry would fail the same way.
    #[error("nothing in this run can answer what the reward asks: {0}")]
    Unsupported(String),
    /// A service refused a query of the reward, which is no fault of the environment's code: the query may hold a text
    /// that the policy sampled. Every retry would be refused.
    #[error("the service refused the request: {0}")]
    Refused(String),
    /// The step's logprob queries were used up, and the next step did not come in time.
    #[error("the {0} logprob queries of this step are used up (`scorer.queries_per_step`)")]
    Budget(u64),
    /// The reward came out NaN, infinite or too large.
    #[error("the reward is not valid: {0}")]
    NotFinite(String),
}

impl From<PromptError> for RewardError {
    fn from(error: PromptError) -> Self {
        Self::Environment(error.to_string())
    }
}

impl RewardError {
    /// Whether the same scoring may succeed if it is tried again now. A wait that took its whole limit is not repeated:
    /// repeating the wait would multiply the limit.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Service(_))
    }

    /// Whether a service could not answer: neither the rollout nor its environment explains it, and the same item is
    /// worth sampling again later.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Service(_) | Self::Away(_))
    }

    /// All values of [`Self::name`].
    pub const NAMES: [&'static str; 8] =
        ["service", "away", "timed_out", "environment", "unsupported", "refused", "budget", "not_finite"];

    /// The kind of cause as one word, for counters.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Service(_) => "service",
            Self::Away(_) => "away",
            Self::TimedOut(_) => "timed_out",
            Self::Environment(_) => "environment",
            Self::Unsupported(_) => "unsupported",
            Self::Refused(_) => "refused",
            Self::Budget(_) => "budget",
            Self::NotFinite(_) => "not_finite",
        }
    }

    /// Whether the environment's own code failed, or returned an invalid reward.
    #[must_use]
    pub fn is_environment_fault(&self) -> bool {
        matches!(self, Self::Environment(_) | Self::NotFinite(_))
    }

    /// Whether the cause may lie in the rollout itself, so that the rollout is kept for inspection: neither the run's
    /// setup, nor its limits, nor a service that could not answer explains it.
    #[must_use]
    pub fn needs_quarantine(&self) -> bool {
        !matches!(self, Self::Unsupported(_) | Self::Budget(_)) && !self.is_unanswered()
    }
}

impl From<BackendError> for RewardError {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Unsupported(why) => Self::Unsupported(why),
            BackendError::Rejected(why) => Self::Refused(why),
            // What is lost may have been an adapter leased to one measurement: the next try gets another.
            BackendError::Unavailable(why) | BackendError::Lost(why) => Self::Service(why),
            BackendError::TimedOut(why) | BackendError::Away(why) => Self::Away(why),
            // It says nothing about the rollout, and ends the run.
            BackendError::Denied { .. } => Self::Service(error.to_string()),
        }
    }
}

impl From<RewardOutOfRange> for RewardError {
    fn from(error: RewardOutOfRange) -> Self {
        Self::NotFinite(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::DenialReason;

    #[test]
    fn a_number_that_training_cannot_bear_is_refused() {
        for fine in [0.0, -0.5, Reward::MOST, -Reward::MOST] {
            assert_eq!(Reward::new(fine).map(Reward::get), Ok(fine));
        }
        for wrong in [1e30, -1e30, f32::INFINITY, f32::NAN] {
            let told = RewardError::from(Reward::new(wrong).unwrap_err());
            assert!(told.is_environment_fault(), "{told}");
            let expected = format!("the reward is not valid: {wrong:?} does not lie between -1e9 and 1e9");
            assert_eq!(told.to_string(), expected);
        }
    }

    #[test]
    fn every_cause_is_a_known_label() {
        let why = String::new;
        let causes = [
            RewardError::Service(why()),
            RewardError::Away(why()),
            RewardError::TimedOut(1),
            RewardError::Environment(why()),
            RewardError::Unsupported(why()),
            RewardError::Refused(why()),
            RewardError::Budget(1),
            RewardError::NotFinite(why()),
        ];
        assert_eq!(causes.each_ref().map(RewardError::name), RewardError::NAMES);
    }
    #[test]
    fn a_service_without_an_answer_is_never_the_fault_of_the_environment() {
        let why = || "too long".to_owned();
        let cases = [
            (BackendError::Rejected(why()), RewardError::Refused(why()), true),
            (BackendError::Unsupported(why()), RewardError::Unsupported(why()), false),
            (BackendError::Unavailable(why()), RewardError::Service(why()), false),
            (BackendError::TimedOut(why()), RewardError::Away(why()), false),
            (BackendError::Away(why()), RewardError::Away(why()), false),
            (BackendError::Lost(why()), RewardError::Service(why()), false),
            (
                BackendError::Denied { reason: DenialReason::Credit, detail: why() },
                RewardError::Service(
                    "the service denied the request (the account has no credit): too long".into(),
                ),
                false,
            ),
        ];
        for (error, cause, quarantined) in cases {
            let told = RewardError::from(error);
            assert_eq!(told, cause);
            assert!(!told.is_environment_fault(), "{told}");
            assert_eq!(told.needs_quarantine(), quarantined, "{told}");
        }
    }
}
