//! The losses of policies and of texts: names, settings and values. The embedded engine has their derivatives.
//!
//! All but `truncated_importance_sampling` and `masked_importance_sampling` are losses of the Tinker API.

mod config;

pub use config::{LossError, PolicyLoss};

use crate::datum::{Datum, LossInputs};
use serde::{Deserialize, Serialize};

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

impl Loss {
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
    /// the log of its importance ratio, or of that of its sequence ([`Self::sequence_log_ratio`]), and `coefficient` its
    /// advantage, or its weight for cross-entropy. `None` if the formula of the loss is not public.
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
