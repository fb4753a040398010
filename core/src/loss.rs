//! The losses of the Tinker API: names, settings and values. The embedded engine has their derivatives.

use crate::choice::{variant, variant_names};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// A loss, summed over tokens and data (never averaged, so that gradients of parts add up).
///
/// With `lp` the logprob of the target under the current weights, `q` the logprob at sampling time, `A` the
/// advantage and `r = exp(lp - q)`, each variant states what is summed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Loss {
    /// `-lp * w`; weights may be negative.
    CrossEntropy,
    /// `-r * A`, without any bound on the ratio.
    ImportanceSampling,
    /// `-min(r * A, clip(r, low, high) * A)` (Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 7).
    Ppo {
        /// Lower bound of the ratio.
        low: f64,
        /// Upper bound of the ratio.
        high: f64,
    },
    /// `-stop_gradient(clip(r, low, high)) * lp * A` (MiniMax 2025, "MiniMax-M1", eq. 4).
    Cispo {
        /// Lower bound of the ratio.
        low: f64,
        /// Upper bound of the ratio.
        high: f64,
    },
}

/// The losses that learn from rewards, by the names that configs and the Tinker API have for them. Rollouts may be
/// stale, so the default truncates importance ratios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyLoss {
    /// [`Loss::Cispo`], with the bounds 0 and 4.
    #[default]
    Cispo,
    /// [`Loss::Ppo`], with the bounds 0.8 and 1.2.
    Ppo,
    /// [`Loss::ImportanceSampling`], which has no settings.
    ImportanceSampling,
}

/// A loss name or setting that is not valid.
#[derive(Debug, Error, PartialEq)]
pub enum LossError {
    /// The name is unknown.
    #[error("unknown loss `{0}`: use cross_entropy or one of {policies}", policies = variant_names::<PolicyLoss>().join(", "))]
    Name(String),
    /// The setting is not one of this loss.
    #[error("the loss `{loss}` has no setting `{key}`")]
    Key {
        /// Name of the requested loss.
        loss: String,
        /// Setting it does not have.
        key: String,
    },
    /// The bounds are not `0 <= low <= high`, both finite.
    #[error(
        "clip_low_threshold and clip_high_threshold must be finite ratios with 0 <= low <= high, got {low} and {high}"
    )]
    Bounds {
        /// Lower bound of the ratio, as given.
        low: f64,
        /// Upper bound of the ratio, as given.
        high: f64,
    },
}

/// Name of the loss that learns from texts.
const CROSS_ENTROPY: &str = "cross_entropy";
/// Names of the bounds of an importance ratio.
const BOUNDS: [&str; 2] = ["clip_low_threshold", "clip_high_threshold"];

impl PolicyLoss {
    /// The loss with these settings, and with defaults for missing ones.
    ///
    /// # Errors
    /// Settings that the loss does not have, and bounds out of order.
    pub fn with_settings(self, settings: &BTreeMap<String, f64>) -> Result<Loss, LossError> {
        match self {
            Self::Cispo => bounds(settings, [0.0, 4.0]).map(|[low, high]| Loss::Cispo { low, high }),
            Self::Ppo => bounds(settings, [0.8, 1.2]).map(|[low, high]| Loss::Ppo { low, high }),
            Self::ImportanceSampling => Ok(Loss::ImportanceSampling),
        }
        .and_then(|loss| loss.refuse_others(settings))
    }
}

/// The bounds of an importance ratio, `usual` where they are not set.
fn bounds(settings: &BTreeMap<String, f64>, usual: [f64; 2]) -> Result<[f64; 2], LossError> {
    let [low, high] = [0, 1].map(|i| settings.get(BOUNDS[i]).copied().unwrap_or(usual[i]));
    if low.is_finite() && high.is_finite() && 0.0 <= low && low <= high {
        Ok([low, high])
    } else {
        Err(LossError::Bounds { low, high })
    }
}

impl Loss {
    /// Reads a loss from its wire name and its `loss_fn_config`.
    ///
    /// # Errors
    /// Unknown names and settings, and bounds out of order.
    pub fn from_config(name: &str, settings: &BTreeMap<String, f64>) -> Result<Self, LossError> {
        if name == CROSS_ENTROPY {
            return Self::CrossEntropy.refuse_others(settings);
        }
        variant::<PolicyLoss>(name).ok_or_else(|| LossError::Name(name.into()))?.with_settings(settings)
    }

    /// The name in the Tinker API.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::CrossEntropy => CROSS_ENTROPY,
            Self::ImportanceSampling => "importance_sampling",
            Self::Ppo { .. } => "ppo",
            Self::Cispo { .. } => "cispo",
        }
    }

    /// The settings in the Tinker API, from which [`Self::from_config`] makes the same loss.
    #[must_use]
    pub fn settings(&self) -> BTreeMap<String, f64> {
        match *self {
            Self::CrossEntropy | Self::ImportanceSampling => BTreeMap::new(),
            Self::Ppo { low, high } | Self::Cispo { low, high } => {
                BOUNDS.map(String::from).into_iter().zip([low, high]).collect()
            }
        }
    }

    /// What a token adds to the loss. `logprob` is that of the current weights, `sampled` that of the sampler, and
    /// `coefficient` the token's advantage, or its weight for cross-entropy.
    #[must_use]
    pub fn value(&self, logprob: f64, sampled: f64, coefficient: f64) -> f64 {
        let ratio = (logprob - sampled).exp();
        match *self {
            Self::CrossEntropy => -logprob * coefficient,
            Self::ImportanceSampling => -ratio * coefficient,
            Self::Ppo { low, high } => -(ratio * coefficient).min(ratio.clamp(low, high) * coefficient),
            Self::Cispo { low, high } => -ratio.clamp(low, high) * logprob * coefficient,
        }
    }

    fn refuse_others(self, settings: &BTreeMap<String, f64>) -> Result<Self, LossError> {
        let own = self.settings();
        match settings.keys().find(|key| !own.contains_key(*key)) {
            Some(key) => Err(LossError::Key { loss: self.name().into(), key: key.clone() }),
            None => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_read_from_the_name_and_the_settings_that_it_gives() {
        for policy in variant_names::<PolicyLoss>().iter().map(|name| variant::<PolicyLoss>(name).unwrap()) {
            let loss = policy.with_settings(&BTreeMap::new()).unwrap();
            assert_eq!(Loss::from_config(loss.name(), &loss.settings()), Ok(loss));
        }
        assert_eq!(Loss::from_config("cross_entropy", &BTreeMap::new()), Ok(Loss::CrossEntropy));
        let names = "unknown loss `pop`: use cross_entropy or one of cispo, ppo, importance_sampling";
        assert_eq!(Loss::from_config("pop", &BTreeMap::new()).unwrap_err().to_string(), names);
    }

    #[test]
    fn settings_that_a_loss_does_not_have_are_refused() {
        let read = |name: &str, key: &str, value: f64| {
            Loss::from_config(name, &BTreeMap::from([(key.to_owned(), value)]))
        };
        for loss in ["cross_entropy", "importance_sampling"] {
            let error = LossError::Key { loss: loss.into(), key: "clip_low_threshold".into() };
            assert_eq!(read(loss, "clip_low_threshold", 0.5), Err(error));
        }
        let error = LossError::Key { loss: "ppo".into(), key: "beta".into() };
        assert_eq!(read("ppo", "beta", 0.5), Err(error));
        assert_eq!(read("ppo", "clip_low_threshold", 1.5), Err(LossError::Bounds { low: 1.5, high: 1.2 }));
    }
}
