//! What is trained and how: the loss, the optimizer, the adapter, and the sampling of completions.

use super::file::ConfigFile;
use super::{at_least_one, choose, one_of};
use minds_core::advantage::Estimator;
use minds_core::lora::{LoraSpec, LoraSpecError};
use minds_core::loss::{Loss, LossError};
use minds_core::optim::AdamParams;
use minds_core::sampling::{SamplingParams, Stop};
use std::num::NonZeroU32;

/// Losses that learn from rewards, the default first. Rollouts may be stale, so the default truncates importance ratios.
pub(super) const LOSSES: [&str; 3] = ["cispo", "ppo", "importance_sampling"];
pub(super) const ESTIMATORS: &[(&str, Estimator)] = &[
    ("group_mean", Estimator::GroupMean),
    ("group_std", Estimator::GroupStd),
    ("leave_one_out", Estimator::LeaveOneOut),
    ("none", Estimator::None),
];
/// Most samples that one request can ask for.
const MOST_ROLLOUTS: u32 = 4096;

/// A key and the problem with its value.
type KeyProblem = (String, String);

/// Resolved settings of training and sampling.
pub(super) struct LearningPlan {
    /// Rollouts of each group of an item.
    pub group_size: NonZeroU32,
    /// Loss function with its settings.
    pub loss: Loss,
    /// Adam parameters before the schedule applies.
    pub adam: AdamParams,
    /// Shape and seed of the trained adapter.
    pub lora: LoraSpec,
    /// How rewards become advantages.
    pub estimator: Estimator,
    /// How completions are sampled.
    pub sampling: SamplingParams,
}

impl LearningPlan {
    /// Checks the keys and fills in defaults.
    ///
    /// # Errors
    /// The invalid key, and what is wrong with it.
    pub(super) fn decide(file: &ConfigFile, seed: u64) -> Result<Self, KeyProblem> {
        let trainer = &file.trainer;
        let bad = |key: &str, problem: String| (key.to_owned(), problem);
        let group_size = trainer.rollouts_per_example.unwrap_or(4);
        let group_size = NonZeroU32::new(group_size)
            .ok_or_else(|| bad("trainer.rollouts_per_example", "is 0, it must be at least 1".into()))?;
        if group_size.get() > MOST_ROLLOUTS {
            let problem = format!("is {group_size}, it must be at most {MOST_ROLLOUTS}");
            return Err(bad("trainer.rollouts_per_example", problem));
        }
        let lora = LoraSpec {
            alpha: trainer.lora_alpha.unwrap_or(32.0),
            ..LoraSpec::all_linear(trainer.training_rank.unwrap_or(32), seed)
        };
        lora.check().map_err(|error| {
            let key = if matches!(error, LoraSpecError::Alpha(_)) { "lora_alpha" } else { "training_rank" };
            bad(&format!("trainer.{key}"), format!("is wrong: {error}"))
        })?;
        let estimator = choose(trainer.advantage.as_deref(), ESTIMATORS)
            .map_err(|problem| bad("trainer.advantage", problem))?;
        Ok(Self {
            group_size,
            loss: loss(file)?,
            adam: adam(file)?,
            lora,
            estimator,
            sampling: sampling(file)?,
        })
    }
}

fn loss(file: &ConfigFile) -> Result<Loss, KeyProblem> {
    let name = file.trainer.loss_fn.as_deref().unwrap_or(LOSSES[0]);
    let loss = Loss::from_config(name, &file.trainer.loss_fn_config).map_err(|error| match error {
        LossError::Name(_) => {
            let problem = format!("is \"{name}\", it must be {}", one_of(name, LOSSES.into_iter()));
            ("trainer.loss_fn".to_owned(), problem)
        }
        LossError::Key { .. } | LossError::Bounds { .. } => {
            ("trainer.loss_fn_config".to_owned(), format!("is wrong: {error}"))
        }
    })?;
    if loss == Loss::CrossEntropy {
        let problem = "is cross_entropy, which learns from no reward: use importance_sampling, ppo or cispo";
        return Err(("trainer.loss_fn".into(), problem.into()));
    }
    Ok(loss)
}

fn adam(file: &ConfigFile) -> Result<AdamParams, KeyProblem> {
    let usual = AdamParams::default();
    let adam = AdamParams {
        learning_rate: file.trainer.learning_rate.unwrap_or(usual.learning_rate),
        beta1: file.optim.beta1.unwrap_or(usual.beta1),
        beta2: file.optim.beta2.unwrap_or(usual.beta2),
        eps: file.optim.eps.unwrap_or(usual.eps),
        weight_decay: file.optim.weight_decay.unwrap_or(usual.weight_decay),
        grad_clip_norm: file.optim.grad_clip_norm.unwrap_or(usual.grad_clip_norm),
    };
    adam.check().map_err(|error| {
        let table = if error.key == "learning_rate" { "trainer" } else { "optim" };
        (format!("{table}.{}", error.key), format!("is {}, it must {}", error.value, error.must))
    })?;
    Ok(adam)
}

fn sampling(file: &ConfigFile) -> Result<SamplingParams, KeyProblem> {
    let args = &file.trainer.args;
    let bad = |key: &str, problem: String| (format!("trainer.args.{key}"), problem);
    let sampling = SamplingParams {
        max_tokens: at_least_one(args.max_new_tokens.unwrap_or(2048))
            .map_err(|problem| bad("max_new_tokens", problem))?
            .get(),
        temperature: args.temperature.unwrap_or(1.0),
        top_k: args.top_k,
        top_p: args.top_p.unwrap_or(1.0),
        seed: None,
        stop: Stop::ModelDefault,
    };
    if !(sampling.temperature.is_finite() && sampling.temperature >= 0.0) {
        return Err(bad("temperature", format!("is {}, it must not be negative", sampling.temperature)));
    }
    if sampling.top_k == Some(0) {
        return Err(bad("top_k", "is 0, it must be at least 1".into()));
    }
    if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
        return Err(bad("top_p", format!("is {}, it must lie in (0, 1]", sampling.top_p)));
    }
    Ok(sampling)
}
