//! The losses of policies and of texts: names, settings and values. The embedded engine has their derivatives.
//!
//! All but `truncated_importance_sampling` and `masked_importance_sampling` are losses of the Tinker API.

use crate::choice::{variant, variant_names};
use crate::datum::{Datum, LossInputs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// A loss, summed over tokens and data (never averaged, so that gradients of parts add up).
///
/// With `lp` the logprob of the target under the current weights, `q` the logprob at sampling time, `A` the
/// advantage and `r = exp(lp - q)`, each variant states what is summed. `sg` is `stop_gradient`.
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
    /// `-sg(clip(r, low, high)) * lp * A` (MiniMax 2025, "MiniMax-M1", eq. 4).
    Cispo {
        /// Lower bound of the ratio.
        low: f64,
        /// Upper bound of the ratio.
        high: f64,
    },
    /// `-min(s * A, clip(s, low, high) * A)`, where `s` is the geometric mean of `r` over the sampled tokens of the
    /// sequence. Each token keeps the gradient of its own logprob (Zheng et al. 2025, "Group Sequence Policy
    /// Optimization", arXiv 2507.18071, eq. 7 and 13: GSPO-token).
    Gspo {
        /// Lower bound of the ratio of a sequence.
        low: f64,
        /// Upper bound of the ratio of a sequence.
        high: f64,
    },
    /// `-(lp * A - beta / 2 * (lp - q)^2)`, over all sampled tokens, also those whose advantage is 0 (Richemond et al.
    /// 2024, "Offline Regularised Reinforcement Learning for Large Language Models Alignment", arXiv 2405.19107, as the
    /// Tinker API has it).
    Dro {
        /// Weight of the quadratic penalty.
        beta: f64,
    },
    /// `-sg(min(r, high)) * lp * A` (Ionides 2008, "Truncated Importance Sampling"; Yao et al. 2025, "Your Efficient RL
    /// Framework Secretly Brings You Off-Policy RL Training"). The same as [`Loss::Cispo`] with the lower bound 0.
    TruncatedImportanceSampling {
        /// Upper bound of the ratio.
        high: f64,
    },
    /// `-sg(r) * lp * A` where `low <= r <= high`, and 0 elsewhere (Ling Team 2025, "Every Step Evolves", arXiv
    /// 2510.18855: IcePop).
    MaskedImportanceSampling {
        /// Smallest ratio of a token that counts.
        low: f64,
        /// Largest ratio of a token that counts.
        high: f64,
    },
    /// `stable_reinforce` of the Tinker API. Its formula is not public: only Tinker's hosted service computes it, from
    /// what it recorded of each sample and the [`Provenance`](crate::datum::Provenance) of each datum.
    StableReinforce {
        /// Weight of its KL term; `None` for the service's own.
        kl_coeff: Option<f64>,
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
    /// [`Loss::TruncatedImportanceSampling`], with the upper bound 2.
    TruncatedImportanceSampling,
    /// [`Loss::MaskedImportanceSampling`], with the bounds 0.5 and 5.
    MaskedImportanceSampling,
    /// [`Loss::Gspo`], with the bounds 0.9997 and 1.0004 of its paper.
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
    #[error("{key} must be a finite number of at least 0, got {value}")]
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
            Self::Gspo => usual([1.0 - 3e-4, 1.0 + 4e-4]).map(|[low, high]| Loss::Gspo { low, high }),
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

    /// Whether the importance ratio is one number per sequence, not per token.
    #[must_use]
    pub fn has_sequence_ratio(&self) -> bool {
        matches!(self, Self::Gspo { .. })
    }

    /// Whether every datum must say which samples its tokens come from, and the samples must be recorded.
    #[must_use]
    pub fn needs_provenance(&self) -> bool {
        matches!(self, Self::StableReinforce { .. })
    }

    /// Whether a position adds to the loss. `coefficient` is its advantage or weight, `sampled` whether the model
    /// sampled its target.
    #[must_use]
    pub fn counts(&self, coefficient: f64, sampled: bool) -> bool {
        coefficient != 0.0 || (sampled && matches!(self, Self::Dro { .. }))
    }

    /// What a token that [counts](Self::counts) adds to the loss. `logprob` is that of the current weights, `log_ratio`
    /// the log of its importance ratio ([`Self::log_ratio`]), and `coefficient` the token's advantage, or its weight for
    /// cross-entropy. `None` if the formula of the loss is not public.
    #[must_use]
    pub fn value(&self, logprob: f64, log_ratio: f64, coefficient: f64) -> Option<f64> {
        let ratio = log_ratio.exp();
        Some(match *self {
            Self::CrossEntropy => -logprob * coefficient,
            Self::ImportanceSampling => -ratio * coefficient,
            Self::Ppo { low, high } | Self::Gspo { low, high } => {
                -(ratio * coefficient).min(ratio.clamp(low, high) * coefficient)
            }
            Self::Cispo { low, high } => -ratio.clamp(low, high) * logprob * coefficient,
            Self::TruncatedImportanceSampling { high } => -ratio.min(high) * logprob * coefficient,
            Self::MaskedImportanceSampling { low, high } => match (low..=high).contains(&ratio) {
                true => -ratio * logprob * coefficient,
                false => 0.0,
            },
            Self::Dro { beta } => -(logprob * coefficient - 0.5 * beta * log_ratio * log_ratio),
            Self::StableReinforce { .. } => return None,
        })
    }

    /// The log ratio of a sequence: the mean of `logprob - sampled` over its sampled targets, where `logprob(t)` is the
    /// logprob of target `t` under the current weights. 0 if it has none, or if `datum` carries weights.
    #[must_use]
    pub fn sequence_log_ratio(datum: &Datum, logprob: impl Fn(usize) -> f64) -> f64 {
        let LossInputs::Policy { logprobs, .. } = datum.inputs() else { return 0.0 };
        let sampled = (0..datum.len()).filter(|position| datum.is_sampled(*position));
        let count = sampled.clone().count().max(1);
        sampled.map(|t| logprob(t) - f64::from(logprobs[t])).sum::<f64>() / count as f64
    }

    /// What a datum adds to the loss, by the logprobs of its targets under the current weights. A position without a
    /// logprob (NaN) counts nothing. `None` if the formula of the loss is not public.
    #[must_use]
    pub fn of_datum(&self, datum: &Datum, logprobs: &[f32]) -> Option<f64> {
        let logprob = |t: usize| f64::from(logprobs[t]);
        let sequence = self.has_sequence_ratio().then(|| Self::sequence_log_ratio(datum, logprob));
        let known = (0..datum.len().min(logprobs.len())).filter(|t| !logprobs[*t].is_nan());
        known
            .map(|t| {
                let (sampled, coefficient) = datum.loss_inputs_at(t);
                match self.counts(f64::from(coefficient), datum.is_sampled(t)) {
                    true => {
                        let log_ratio = sequence.unwrap_or(logprob(t) - f64::from(sampled));
                        self.value(logprob(t), log_ratio, f64::from(coefficient))
                    }
                    false => Some(0.0),
                }
            })
            .sum()
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
    /// Three targets, the last two sampled with the ratios 2 and 1/2 and the advantages 0 and 1.
    fn datum() -> Datum {
        let q = [-1.0 - 2f32.ln(), -1.0 + 2f32.ln()];
        let inputs = LossInputs::Policy { logprobs: vec![0.0, q[0], q[1]], advantages: vec![0.0, 0.0, 1.0] };
        Datum::new(vec![1, 2, 3], vec![2, 3, 4], inputs).unwrap()
    }

    #[test]
    fn a_datum_adds_what_the_formulas_say() {
        let of = |name: &str, settings: &[(&str, f64)]| {
            let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
            Loss::from_config(name, &settings).unwrap().of_datum(&datum(), &[-1.0; 3])
        };
        let ln2 = 2f64.ln();
        // By hand: the token with an advantage has the ratio 1/2 and the logprob -1.
        for (name, settings, sum) in [
            ("importance_sampling", &[][..], -0.5),
            ("truncated_importance_sampling", &[("clip_high_threshold", 0.25)], 0.25),
            ("masked_importance_sampling", &[("clip_low_threshold", 0.4)], 0.5),
            ("masked_importance_sampling", &[("clip_low_threshold", 0.6)], 0.0),
            // The mean log ratio of the sequence is (ln 2 - ln 2) / 2 = 0.
            ("gspo", &[], -1.0),
            ("gspo", &[("clip_low_threshold", 0.5), ("clip_high_threshold", 0.75)], -0.75),
            // 1 from the advantage, and the penalty of both sampled tokens, not of the prompt.
            ("dro", &[("beta", 0.5)], 1.0 + 0.5 * ln2 * ln2),
        ] {
            let found = of(name, settings).unwrap();
            assert!((found - sum).abs() < 1e-6, "{name} {settings:?}: {found} not {sum}");
        }
        assert_eq!(of("stable_reinforce", &[]), None);
    }

    #[test]
    fn truncated_importance_sampling_is_cispo_in_the_tinker_api() {
        let truncated = Loss::TruncatedImportanceSampling { high: 2.0 };
        let api = truncated.in_tinker_api();
        assert_eq!((api.name(), api.settings()["clip_low_threshold"]), ("cispo", 0.0));
        for log_ratio in [-3.0, 0.0, 0.5, 3.0] {
            assert_eq!(truncated.value(-1.5, log_ratio, -0.7), api.value(-1.5, log_ratio, -0.7));
        }
    }
}
