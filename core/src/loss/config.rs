//! Losses by their names and settings, as configs and requests write them.

use super::Loss;
use crate::choice::{variant, variant_names};
use crate::number::ShortNumber;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

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
    /// [`Loss::TruncatedImportanceSampling`], with the upper bound 2.
    TruncatedImportanceSampling,
    /// [`Loss::MaskedImportanceSampling`], with the bounds 0.5 and 5.
    MaskedImportanceSampling,
    /// [`Loss::Gspo`], with the bounds 0.8 and 1.2. Stale rollouts teach less with 0.9997 and 1.0004, those of its paper.
    Gspo,
    /// [`Loss::Dro`], with a beta of 0.05.
    Dro,
    /// [`Loss::StableReinforce`], with the KL weight of the service.
    StableReinforce,
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
    /// A weight is negative or not finite.
    #[error("{key} must be a finite number of at least 0, got {}", ShortNumber(*value))]
    Weight {
        /// Name of the setting.
        key: &'static str,
        /// Its value, as given.
        value: f64,
    },
    /// The loss is a graph that a client traces.
    #[error(
        "the loss `custom` is a graph traced by the client, and no server of ours runs it: compute it on the client, as \
         `forward_backward_custom` of the official SDK does, or use one of {policies}",
        policies = variant_names::<PolicyLoss>().join(", ")
    )]
    Custom,
}

/// Name of the loss that learns from texts.
const CROSS_ENTROPY: &str = "cross_entropy";
/// Name of the loss whose formula the client sends.
const CUSTOM: &str = "custom";
/// Names of the bounds of an importance ratio.
const BOUNDS: [&str; 2] = ["clip_low_threshold", "clip_high_threshold"];
/// Name of the weight of the quadratic penalty.
const BETA: &str = "beta";
/// Name of the weight of the KL term.
const KL_COEFF: &str = "kl_coeff";

impl PolicyLoss {
    /// The loss with these settings, and with defaults for missing ones.
    ///
    /// # Errors
    /// Settings that the loss does not have, and bounds out of order.
    pub fn with_settings(self, settings: &BTreeMap<String, f64>) -> Result<Loss, LossError> {
        let usual = |usual| bounds(settings, usual);
        let loss = match self {
            Self::Cispo => usual([0.0, 4.0]).map(|[low, high]| Loss::Cispo { low, high }),
            Self::Ppo => usual([0.8, 1.2]).map(|[low, high]| Loss::Ppo { low, high }),
            Self::ImportanceSampling => Ok(Loss::ImportanceSampling),
            Self::TruncatedImportanceSampling => {
                usual([0.0, 2.0]).map(|[_, high]| Loss::TruncatedImportanceSampling { high })
            }
            Self::MaskedImportanceSampling => {
                usual([0.5, 5.0]).map(|[low, high]| Loss::MaskedImportanceSampling { low, high })
            }
            Self::Gspo => usual([0.8, 1.2]).map(|[low, high]| Loss::Gspo { low, high }),
            Self::Dro => weight(settings, BETA).map(|beta| Loss::Dro { beta: beta.unwrap_or(0.05) }),
            Self::StableReinforce => {
                weight(settings, KL_COEFF).map(|kl_coeff| Loss::StableReinforce { kl_coeff })
            }
        };
        loss.and_then(|loss| loss.refuse_others(settings))
    }
}

/// A setting that must not be negative.
fn weight(settings: &BTreeMap<String, f64>, key: &'static str) -> Result<Option<f64>, LossError> {
    match settings.get(key) {
        Some(value) if !(value.is_finite() && *value >= 0.0) => Err(LossError::Weight { key, value: *value }),
        weight => Ok(weight.copied()),
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
        if name == CUSTOM {
            return Err(LossError::Custom);
        }
        variant::<PolicyLoss>(name).ok_or_else(|| LossError::Name(name.into()))?.with_settings(settings)
    }

    /// The name in configs and requests.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::CrossEntropy => CROSS_ENTROPY,
            Self::ImportanceSampling => "importance_sampling",
            Self::TruncatedImportanceSampling { .. } => "truncated_importance_sampling",
            Self::MaskedImportanceSampling { .. } => "masked_importance_sampling",
            Self::Ppo { .. } => "ppo",
            Self::Cispo { .. } => "cispo",
            Self::Gspo { .. } => "gspo",
            Self::Dro { .. } => "dro",
            Self::StableReinforce { .. } => "stable_reinforce",
        }
    }

    /// The settings by name, from which [`Self::from_config`] makes the same loss.
    #[must_use]
    pub fn settings(&self) -> BTreeMap<String, f64> {
        let named = |names: &[&str], values: &[f64]| {
            names.iter().map(|name| (*name).to_owned()).zip(values.iter().copied()).collect()
        };
        match *self {
            Self::CrossEntropy | Self::ImportanceSampling => BTreeMap::new(),
            Self::Ppo { low, high }
            | Self::Cispo { low, high }
            | Self::Gspo { low, high }
            | Self::MaskedImportanceSampling { low, high } => named(&BOUNDS, &[low, high]),
            Self::TruncatedImportanceSampling { high } => named(&BOUNDS[1..], &[high]),
            Self::Dro { beta } => named(&[BETA], &[beta]),
            Self::StableReinforce { kl_coeff } => named(&[KL_COEFF], kl_coeff.as_slice()),
        }
    }

    /// The same loss in the words of the Tinker API, where it has another name there: `cispo` with the lower bound 0 for
    /// `truncated_importance_sampling`.
    #[must_use]
    pub fn in_tinker_api(self) -> Self {
        match self {
            Self::TruncatedImportanceSampling { high } => Self::Cispo { low: 0.0, high },
            loss => loss,
        }
    }

    fn refuse_others(self, settings: &BTreeMap<String, f64>) -> Result<Self, LossError> {
        let own = self.settings();
        let is_own = |key: &str| {
            own.contains_key(key) || (key == KL_COEFF && matches!(self, Self::StableReinforce { .. }))
        };
        match settings.keys().find(|key| !is_own(key)) {
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
        let names = "unknown loss `pop`: use cross_entropy or one of cispo, ppo, importance_sampling, \
                     truncated_importance_sampling, masked_importance_sampling, gspo, dro, stable_reinforce";
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
        for (loss, key) in [
            ("ppo", "beta"),
            ("gspo", "beta"),
            ("dro", "clip_low_threshold"),
            ("truncated_importance_sampling", "clip_low_threshold"),
            ("stable_reinforce", "beta"),
        ] {
            assert_eq!(read(loss, key, 0.5), Err(LossError::Key { loss: loss.into(), key: key.into() }));
        }
        assert_eq!(read("dro", "beta", -1.0), Err(LossError::Weight { key: "beta", value: -1.0 }));
        assert_eq!(
            read("stable_reinforce", "kl_coeff", 0.1),
            Ok(Loss::StableReinforce { kl_coeff: Some(0.1) })
        );
        assert_eq!(read("custom", "beta", 0.5), Err(LossError::Custom));
        assert_eq!(read("ppo", "clip_low_threshold", 1.5), Err(LossError::Bounds { low: 1.5, high: 1.2 }));
    }
}
