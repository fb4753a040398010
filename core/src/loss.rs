//! The losses of the Tinker API, by name and settings. Engines and servers do the arithmetic.

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

/// A loss name or setting that is not valid.
#[derive(Debug, Error, PartialEq)]
pub enum LossError {
    /// The name is unknown.
    #[error("unknown loss `{0}`: use cross_entropy, importance_sampling, ppo or cispo")]
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

impl Loss {
    /// Reads a loss from its wire name and its `loss_fn_config`.
    ///
    /// # Errors
    /// Unknown names and settings, and bounds out of order.
    pub fn from_config(name: &str, config: &BTreeMap<String, f64>) -> Result<Self, LossError> {
        let bounds = |low: f64, high: f64| {
            for key in config.keys() {
                if key != "clip_low_threshold" && key != "clip_high_threshold" {
                    return Err(LossError::Key { loss: name.into(), key: key.clone() });
                }
            }
            let low = config.get("clip_low_threshold").copied().unwrap_or(low);
            let high = config.get("clip_high_threshold").copied().unwrap_or(high);
            if low.is_finite() && high.is_finite() && 0.0 <= low && low <= high {
                Ok((low, high))
            } else {
                Err(LossError::Bounds { low, high })
            }
        };
        let plain = |loss: Self| match config.keys().next() {
            Some(key) => Err(LossError::Key { loss: name.into(), key: key.clone() }),
            None => Ok(loss),
        };
        match name {
            "cross_entropy" => plain(Self::CrossEntropy),
            "importance_sampling" => plain(Self::ImportanceSampling),
            "ppo" => bounds(0.8, 1.2).map(|(low, high)| Self::Ppo { low, high }),
            "cispo" => bounds(0.0, 4.0).map(|(low, high)| Self::Cispo { low, high }),
            other => Err(LossError::Name(other.into())),
        }
    }

    /// The name in the Tinker API.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::CrossEntropy => "cross_entropy",
            Self::ImportanceSampling => "importance_sampling",
            Self::Ppo { .. } => "ppo",
            Self::Cispo { .. } => "cispo",
        }
    }
}
