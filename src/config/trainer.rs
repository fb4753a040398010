//! The `[trainer]` table: how groups become batches, and batches become optimizer steps. Its keys are checked together.

use super::choice::{Choice, WeightsChoice, chosen};
use super::error::{KeyProblem, at_most, ensure, ensure_number};
use super::file::{ConfigFile, SamplingConfig, TrainerConfig};
use super::optim::{self, bounded};
use super::service::ServicePlan;
use minds_core::advantage::Estimator;
use minds_core::choice::variant_names;
use minds_core::lora::{LoraSpec, LoraSpecError};
use minds_core::loss::{Loss, PolicyLoss};
use minds_core::sampling::{SamplingParams, Stop};
use minds_core::service::SamplerWeights;
use minds_stages::batcher::{BatcherOptions, ConstantGroups, LengthShaping, StalenessHandling};
use minds_stages::pipeline::batches_ahead;
use minds_stages::trainer::TrainerOptions;
use serde::de::{Error as _, IntoDeserializer as _};
use serde::{Deserialize, Deserializer, Serialize};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

/// How a group with failed members is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberFailureHandling {
    /// The members with a reward are trained, if they are enough.
    #[default]
    Survivors,
    /// Failed members are resampled first.
    Retry,
    /// The group is dropped.
    Drop,
}

/// The reference weights of the drift penalty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReferenceWeights {
    /// The base model without an adapter.
    #[default]
    Base,
}

/// Name of the loss that a client of the Tinker API traces.
const CUSTOM_LOSS: &str = "custom";

/// Reads the name of a loss, which may be missing. One that only a program can give is refused with the reason.
pub(super) fn loss_choice<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Choice<PolicyLoss>>, D::Error> {
    let Some(written) = Option::<String>::deserialize(from)? else { return Ok(None) };
    if written == CUSTOM_LOSS {
        return Err(D::Error::custom(format!(
            "is \"{CUSTOM_LOSS}\", a loss that a client of the Tinker API traces from its own code, and a config holds no \
             code: it must be one of: {}",
            variant_names::<PolicyLoss>().join(", ")
        )));
    }
    Choice::deserialize(written.into_deserializer()).map(Some)
}

const GROUP_SIZE: NonZeroU32 = NonZeroU32::new(4).expect("4 is not 0");
const GROUPS_PER_BATCH: NonZeroUsize = NonZeroUsize::new(4).expect("4 is not 0");
/// Largest alpha of the adapter, far above any that is used.
const MOST_ALPHA: f64 = 65_536.0;
const MAX_NEW_TOKENS: NonZeroUsize = NonZeroUsize::new(2048).expect("2048 is not 0");
/// Most samples that one request can ask for.
const MOST_ROLLOUTS: NonZeroU32 = NonZeroU32::new(4096).expect("4096 is not 0");
/// Most groups in flight.
const MOST_CREDITS: u64 = 1 << 14;
/// Largest value of keys that count steps of staleness.
const MOST_STEPS: u64 = 1000;
/// Mean gap in nats from which sampler and trainer cannot hold the same model: a factor of 1.6 in probability.
const MAX_FIRST_GAP: f64 = 0.5;
/// Default bound on staleness, per batch that may be in flight. Credits keep the mean staleness at
/// `async_off_policy_steps`; the bound makes the trainer wait for stragglers, and with this one a step takes at most 3%
/// longer than without a bound, for the heaviest tails of docs/simulate.md.
const STALENESS_PER_BATCH: u64 = 64;
/// Optimizer steps of a run without `total_batches`.
const MAX_STEPS: u64 = 100_000;
/// Refused batches in a row after which the run ends.
const REFUSED_BATCHES: u32 = 3;
/// Fewest checkpoints to keep: the last one may be damaged.
const LEAST_STATES: usize = 2;

/// Rollouts of each group of an item.
pub(super) fn group_size(trainer: &TrainerConfig) -> Result<NonZeroU32, KeyProblem> {
    let size = trainer.rollouts_per_example.unwrap_or(GROUP_SIZE);
    at_most("trainer.rollouts_per_example", size, MOST_ROLLOUTS)
}

/// How groups become batches.
pub(super) fn batch(trainer: &TrainerConfig) -> Result<BatcherOptions, KeyProblem> {
    let groups_per_batch = trainer.groups_per_batch.unwrap_or(GROUPS_PER_BATCH);
    let substeps = trainer.num_substeps.unwrap_or(NonZeroUsize::MIN);
    let minibatches = substeps.saturating_mul(trainer.stream_minibatches.unwrap_or(NonZeroUsize::MIN));
    if !groups_per_batch.get().is_multiple_of(minibatches.get()) {
        let problem = format!(
            "is {groups_per_batch}; it must be a multiple of num_substeps * stream_minibatches = {minibatches}, so that \
             all parts of a batch have one size"
        );
        return Err(KeyProblem::new("trainer.groups_per_batch", problem));
    }
    let estimator = chosen(trainer.advantage);
    let constant = chosen(trainer.constant_groups);
    let alone = group_size(trainer)?.get() == 1 && estimator != Estimator::None;
    if alone && constant == ConstantGroups::Replace {
        let problem = "is \"replace\", and a group of one is constant, so all groups would be replaced: raise \
                       rollouts_per_example, or set advantage = \"none\"";
        return Err(KeyProblem::new("trainer.constant_groups", problem));
    }
    Ok(BatcherOptions {
        groups_per_batch,
        estimator,
        constant,
        min_members: min_members(trainer)?,
        weighting: chosen(trainer.loss_weighting),
        kl_penalty: kl_penalty(trainer)?,
        rewards: true,
        length: length(trainer)?,
        minibatches,
        staleness: chosen(trainer.staleness),
    })
}

/// How a batch becomes optimizer steps.
pub(super) fn train(file: &ConfigFile) -> Result<TrainerOptions, KeyProblem> {
    let trainer = &file.trainer;
    let loss = chosen(trainer.loss_fn).with_settings(&trainer.loss_fn_config);
    let wrong = |error| KeyProblem::new("trainer.loss_fn_config", format!("is wrong: {error}"));
    if let Some(alarm) = trainer.kl_alarm {
        let holds = alarm > 0.0 && alarm.is_finite();
        ensure_number("trainer.kl_alarm", alarm, holds, "be a positive number of nats")?;
    }
    let gap = trainer.max_first_gap.unwrap_or(MAX_FIRST_GAP);
    let holds = gap >= 0.0 && gap.is_finite();
    ensure_number("trainer.max_first_gap", gap, holds, "be a number of nats, or 0 for no bound")?;
    Ok(TrainerOptions {
        loss: loss.map_err(wrong)?,
        adam: optim::adam(file)?,
        rate: optim::schedule(&file.optim)?,
        substeps: trainer.num_substeps.unwrap_or(NonZeroUsize::MIN),
        publish_every: publish_every(trainer)?,
        weights: chosen(trainer.weights),
        kl_alarm: trainer.kl_alarm,
        clip_multiple: optim::clip_multiple(&file.optim)?,
        max_first_gap: gap,
        max_steps: trainer.total_batches.map_or(MAX_STEPS, NonZeroU64::get),
        save_every: trainer.save_every.unwrap_or(20),
        max_refused: REFUSED_BATCHES,
    })
}

/// Refuses a loss that the service does not compute.
pub(super) fn check_loss(loss: Loss, service: &ServicePlan) -> Result<(), KeyProblem> {
    let name = loss.name();
    let problem = match (loss, service) {
        (Loss::StableReinforce { .. }, ServicePlan::Embedded(_)) => format!(
            "is \"{name}\", which only Tinker's hosted service computes, for its formula is not public: set \
             tinker.base_url to that service, or use \"gspo\" or \"cispo\""
        ),
        (Loss::MaskedImportanceSampling { .. }, service) if service.is_hosted() => format!(
            "is \"{name}\", which Tinker's hosted service does not have: use \"truncated_importance_sampling\" or \
             \"gspo\" there, or the embedded engine"
        ),
        _ => return Ok(()),
    };
    Err(KeyProblem::new("trainer.loss_fn", problem))
}

/// Steps between two publications of the weights.
fn publish_every(trainer: &TrainerConfig) -> Result<NonZeroU64, KeyProblem> {
    let every = trainer.publish_every.unwrap_or(NonZeroU64::MIN);
    let holds = every.get() <= MOST_STEPS;
    ensure("trainer.publish_every", every, holds, format_args!("lie between 1 and {MOST_STEPS}"))
}

/// Steps by which the weights that sample may lie behind those in training on average.
pub(super) fn max_steps_off_policy(
    trainer: &TrainerConfig,
    groups_per_batch: NonZeroUsize,
) -> Result<u64, KeyProblem> {
    let steps = trainer.async_off_policy_steps.unwrap_or(2);
    at_most("trainer.async_off_policy_steps", steps, MOST_STEPS)?;
    let weights = chosen(trainer.weights);
    if steps == 0 && weights == SamplerWeights::InFlight {
        let problem = "is \"inflight\", and with async_off_policy_steps = 0 nothing is sampled while weights are \
                       published: raise async_off_policy_steps, or leave weights out";
        return Err(KeyProblem::new("trainer.weights", problem));
    }
    let credits = (groups_per_batch.get() as u64).saturating_mul(batches_ahead(steps, weights) + 1);
    if credits > MOST_CREDITS {
        let problem = format!(
            "is {groups_per_batch}: with async_off_policy_steps = {steps}, {credits} groups would be in flight, at most \
             {MOST_CREDITS} are possible"
        );
        return Err(KeyProblem::new("trainer.groups_per_batch", problem));
    }
    Ok(steps)
}

/// Largest staleness: steps by which the weights that sampled a group may lie behind those that it trains.
pub(super) fn max_staleness(
    trainer: &TrainerConfig,
    max_steps_off_policy: u64,
    publish_every: NonZeroU64,
) -> Result<u64, KeyProblem> {
    // Rollouts of equal length are as old as the batches in flight and the steps between two publications make them.
    let unpublished = publish_every.get() - 1;
    let ahead = batches_ahead(max_steps_off_policy, chosen(trainer.weights));
    let natural = ahead + unpublished;
    let wide = (STALENESS_PER_BATCH * ahead + unpublished).min(2 * MOST_STEPS);
    let (usual, least) = match chosen(trainer.staleness) {
        StalenessHandling::Wait => (wide, natural),
        StalenessHandling::Drop => (natural, unpublished),
    };
    let staleness = trainer.max_staleness.unwrap_or(usual);
    let twice = match chosen(trainer.weights) {
        SamplerWeights::Snapshot => "",
        SamplerWeights::InFlight => {
            " (with weights = \"inflight\" the oldest weights of a rollout may be twice that many steps behind)"
        }
    };
    let must = format!(
        "be at least {least}: async_off_policy_steps = {max_steps_off_policy}{twice} and publish_every = {publish_every} \
         make rollouts so stale; lower those, or set staleness = \"drop\""
    );
    ensure("trainer.max_staleness", staleness, (least..=2 * MOST_STEPS).contains(&staleness), must)
}

/// Fewest members with a reward that a group needs to be trained.
fn min_members(trainer: &TrainerConfig) -> Result<NonZeroUsize, KeyProblem> {
    let size = group_size(trainer)?.get() as usize;
    // Three of four: few enough for a fault here and there, enough for a baseline.
    let most = (size * 3).div_ceil(4);
    let drops = chosen(trainer.on_member_failure) == MemberFailureHandling::Drop;
    match trainer.min_members {
        Some(_) if drops && size != most => {
            Err(KeyProblem::new("trainer.min_members", "has no effect with on_member_failure = \"drop\""))
        }
        Some(given) => {
            let must = format_args!("lie between 1 and {size}");
            ensure("trainer.min_members", given, given.get() <= size, must)
        }
        None => Ok(NonZeroUsize::new(if drops { size } else { most }).unwrap_or(NonZeroUsize::MIN)),
    }
}

/// How the length of completions counts.
fn length(trainer: &TrainerConfig) -> Result<LengthShaping, KeyProblem> {
    let length_penalty = trainer.length_penalty.unwrap_or(0.0);
    let holds = length_penalty.is_finite() && length_penalty >= 0.0;
    ensure_number("trainer.length_penalty", length_penalty, holds, "be a reward of at least 0")?;
    let limit = trainer.args.max_new_tokens.unwrap_or(MAX_NEW_TOKENS);
    if let Some(buffer) = trainer.overlong_buffer {
        let must = format_args!("be at most trainer.args.max_new_tokens = {limit}");
        ensure("trainer.overlong_buffer", buffer, buffer <= limit, must)?;
    }
    Ok(LengthShaping {
        truncated: chosen(trainer.truncated),
        overlong_buffer: trainer.overlong_buffer,
        length_penalty,
    })
}

/// Penalty per nat of drift from the reference; 0 for no reference.
fn kl_penalty(trainer: &TrainerConfig) -> Result<f32, KeyProblem> {
    let coef = trainer.kl_penalty_coef.unwrap_or(0.0);
    ensure_number("trainer.kl_penalty_coef", coef, (0.0..=1e3).contains(&coef), "lie between 0 and 1000")?;
    if trainer.kl_reference.as_ref().is_some_and(|given| *given != WeightsChoice::default()) && coef == 0.0 {
        let problem = "has no effect without `trainer.kl_penalty_coef`";
        return Err(KeyProblem::new("trainer.kl_reference", problem));
    }
    Ok(coef as f32)
}

/// Shape and seed of the trained adapter.
pub(super) fn lora(trainer: &TrainerConfig, seed: u64) -> Result<LoraSpec, KeyProblem> {
    let alpha = trainer.lora_alpha.unwrap_or(32.0);
    let lora = LoraSpec { alpha, ..LoraSpec::all_linear(trainer.training_rank.unwrap_or(32), seed) };
    lora.check().map_err(|error| {
        let key = if matches!(error, LoraSpecError::Alpha(_)) { "lora_alpha" } else { "training_rank" };
        KeyProblem::new(format!("trainer.{key}"), format!("is wrong: {error}"))
    })?;
    bounded("trainer.lora_alpha", alpha, MOST_ALPHA)?;
    Ok(lora)
}

/// Number of newest checkpoints to keep; `None` for all.
pub(super) fn keep_states(trainer: &TrainerConfig) -> Result<Option<NonZeroUsize>, KeyProblem> {
    let keep = trainer.keep_states.unwrap_or(0);
    let must = format_args!("be at least {LEAST_STATES}, or 0 for all");
    ensure("trainer.keep_states", keep, keep == 0 || keep >= LEAST_STATES, must).map(NonZeroUsize::new)
}

/// Temperature of evaluations: by default the one of training.
pub(super) fn eval_temperature(file: &ConfigFile) -> Result<f32, KeyProblem> {
    let temperature = file.eval.temperature.or(file.trainer.args.temperature).unwrap_or(1.0);
    let holds = temperature.is_finite() && temperature >= 0.0;
    ensure("eval.temperature", temperature, holds, "not be negative")
}

/// The `[trainer.args]` table: how completions are sampled.
pub(super) fn sampling(args: &SamplingConfig) -> Result<SamplingParams, KeyProblem> {
    let temperature = args.temperature.unwrap_or(1.0);
    let top_p = args.top_p.unwrap_or(1.0);
    let is_hot = temperature.is_finite() && temperature >= 0.0;
    ensure("trainer.args.temperature", temperature, is_hot, "not be negative")?;
    ensure("trainer.args.top_p", top_p, top_p > 0.0 && top_p <= 1.0, "lie in (0, 1]")?;
    Ok(SamplingParams {
        max_tokens: args.max_new_tokens.unwrap_or(MAX_NEW_TOKENS).get(),
        temperature,
        top_k: args.top_k.map(NonZeroUsize::get),
        top_p,
        seed: None,
        stop: Stop::ModelDefault,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::tests::{SMALL, plan};
    use crate::config::service::{EMBEDDED, HOSTED_URL};

    #[test]
    fn what_does_not_fit_together_names_its_key() {
        for (key, text) in [
            ("trainer.groups_per_batch", "groups_per_batch = 6\nstream_minibatches = 4"),
            ("trainer.groups_per_batch", "groups_per_batch = 4\nstream_minibatches = 2\nnum_substeps = 4"),
            ("trainer.groups_per_batch", "groups_per_batch = 10000"),
            ("trainer.max_staleness", "async_off_policy_steps = 2\nmax_staleness = 1"),
            ("trainer.max_staleness", "publish_every = 4\nmax_staleness = 2\nstaleness = \"drop\""),
            ("trainer.staleness", "staleness = \"hope\""),
            ("trainer.weights", "weights = \"latest\""),
            ("trainer.weights", "weights = \"inflight\"\nasync_off_policy_steps = 0"),
            (
                "trainer.max_staleness",
                "weights = \"inflight\"\nasync_off_policy_steps = 2\nmax_staleness = 3",
            ),
            ("engine.kv", "[engine]\nkv = \"recompute\""),
            ("engine.kv", "weights = \"inflight\"\n[engine]\nkv = \"drop\""),
            ("trainer.min_members", "min_members = 9"),
            ("trainer.min_members", "min_members = 3\non_member_failure = \"drop\""),
            ("trainer.publish_every", "publish_every = 0"),
            ("trainer.publish_every", "publish_every = 1001"),
            ("trainer.kl_alarm", "kl_alarm = -1"),
            ("trainer.max_first_gap", "max_first_gap = -0.1"),
            ("trainer.kl_penalty_coef", "kl_penalty_coef = -1"),
            ("trainer.kl_reference", "kl_reference = \"pinned:tinker://run/sampler_weights/1\""),
            ("trainer.kl_reference", "kl_penalty_coef = 0.1\nkl_reference = \"latest\""),
            ("trainer.loss_fn", "loss_fn = \"cross_entropy\""),
            ("trainer.loss_fn_config", "loss_fn_config = { clip = 1.0 }"),
            ("trainer.keep_states", "keep_states = 1"),
            ("optim.lr_floor", "[optim]\nlr_floor = 2"),
            ("optim.lr_floor", "[optim]\nlr_floor = 0.1"),
            ("optim.grad_clip_multiple", "[optim]\ngrad_clip_multiple = 0.5"),
            ("optim.grad_clip_multiple", "[optim]\ngrad_clip_multiple = 4\ngrad_clip_norm = 1"),
            ("optim.lr_schedule", "[optim]\nlr_schedule = \"square\""),
        ] {
            let text = format!("{SMALL}[trainer]\nrollouts_per_example = 8\n{text}");
            let error = plan(&text, &[], &[]).unwrap_err().to_string();
            assert!(error.contains(&format!(": `{key}` ")), "{text}\n{error}");
        }
    }

    #[test]
    fn a_default_may_be_written_where_its_key_has_no_effect() {
        for text in ["[engine]\nkv = \"keep\"", "kl_reference = \"base\"", "[optim]\nlr_floor = 0"] {
            let text = format!("{SMALL}[trainer]\n{text}");
            if let Err(error) = plan(&text, &[], &[]) {
                panic!("{text}\n{error}");
            }
        }
    }

    #[test]
    fn a_loss_that_the_service_does_not_compute_is_refused() {
        let read = |loss: &str, service: &str| {
            let table = format!("[trainer]\nloss_fn = \"{loss}\"\n[tinker]\nbase_url = \"{service}\"\n");
            let set = if loss == "dro" { &["trainer.loss_fn_config.beta=0.1"][..] } else { &[] };
            plan(&format!("{SMALL}{table}"), set, &[]).map(|plan| plan.pipeline.train.loss)
        };
        let error = |loss: &str, service: &str| read(loss, service).unwrap_err().to_string();
        let embedded = error("stable_reinforce", EMBEDDED);
        assert!(embedded.contains("`trainer.loss_fn` is \"stable_reinforce\", which only"), "{embedded}");
        let hosted = error("masked_importance_sampling", HOSTED_URL);
        assert!(hosted.contains("does not have"), "{hosted}");
        let custom = error("custom", EMBEDDED);
        assert!(custom.contains("a config holds no code: it must be one of: cispo, ppo"), "{custom}");
        assert!(error("cipso", EMBEDDED).contains("must be one of: cispo, ppo"));
        let stable = read("stable_reinforce", HOSTED_URL).unwrap();
        assert_eq!(stable, Loss::StableReinforce { kl_coeff: None });
        assert_eq!(read("dro", EMBEDDED).unwrap(), Loss::Dro { beta: 0.1 });
    }

    #[test]
    fn groups_that_would_all_be_replaced_are_refused() {
        let groups = |text: &str| {
            let text = format!("{SMALL}[trainer]\nconstant_groups = \"replace\"\n{text}");
            plan(&text, &[], &[]).map(drop).map_err(|error| error.to_string())
        };
        let error = groups("rollouts_per_example = 1").unwrap_err();
        assert!(error.contains("`trainer.constant_groups` is \"replace\""), "{error}");
        assert_eq!(groups("rollouts_per_example = 2"), Ok(()));
        assert_eq!(groups("rollouts_per_example = 1\nadvantage = \"none\""), Ok(()));
    }

    #[test]
    fn staleness_follows_from_depth_and_publication_unless_it_is_set() {
        let staleness =
            |text: &str| plan(&format!("{SMALL}[trainer]\n{text}"), &[], &[]).unwrap().pipeline.max_staleness;
        assert_eq!(staleness("async_off_policy_steps = 3"), 3 * 64);
        assert_eq!(staleness("async_off_policy_steps = 0"), 0);
        assert_eq!(staleness("async_off_policy_steps = 1\npublish_every = 4"), 64 + 3);
        assert_eq!(staleness("async_off_policy_steps = 3\nstaleness = \"drop\""), 3);
        assert_eq!(staleness("async_off_policy_steps = 3\nstaleness = \"drop\"\nmax_staleness = 1"), 1);
        assert_eq!(staleness("async_off_policy_steps = 1\nmax_staleness = 5"), 5);
        // Twice as many batches may be under way.
        assert_eq!(staleness("async_off_policy_steps = 1\nweights = \"inflight\""), 2 * 64);
        assert_eq!(staleness("async_off_policy_steps = 1\nweights = \"inflight\"\nmax_staleness = 2"), 2);
    }

    #[test]
    fn the_strictest_bound_on_staleness_is_explained() {
        let error = |weights: &str, bound: u64| {
            let text = format!(
                "{SMALL}[trainer]\nasync_off_policy_steps = 2\nweights = \"{weights}\"\nmax_staleness = {bound}"
            );
            plan(&text, &[], &[]).unwrap_err().to_string()
        };
        let in_flight = error("inflight", 3);
        assert!(in_flight.contains("be at least 4") && in_flight.contains("twice"), "{in_flight}");
        let snapshot = error("snapshot", 1);
        assert!(snapshot.contains("be at least 2") && !snapshot.contains("twice"), "{snapshot}");
    }

    #[test]
    fn members_may_fail_as_the_config_allows() {
        let members = |text: &str| {
            let text = format!("{SMALL}[trainer]\nrollouts_per_example = 8\n{text}");
            let pipeline = plan(&text, &[], &[]).unwrap().pipeline;
            (pipeline.batch.min_members.get(), pipeline.resamples)
        };
        assert_eq!(members(""), (6, 0));
        assert_eq!(members("on_member_failure = \"retry\""), (6, 2));
        assert_eq!(members("on_member_failure = \"drop\""), (8, 0));
        assert_eq!(members("min_members = 2"), (2, 0));
    }
}
