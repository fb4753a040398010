//! How groups become optimizer steps: the keys of `[trainer]` and `[optim]` that set it, checked together.

use super::file::{ConfigFile, OptimConfig, TrainerConfig};
use super::{at_least_one, choose};
use minds_core::optim::{LearningRateDecay, LearningRateSchedule};
use minds_stages::batcher::{ConstantGroups, LossWeighting, StalenessHandling};
use std::num::{NonZeroU64, NonZeroUsize};

/// Resolved settings of how groups become optimizer steps.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchingPlan {
    /// Groups in the batch of a step.
    pub groups_per_batch: NonZeroUsize,
    /// Batches that may be in flight beside the one in training.
    pub max_steps_off_policy: u64,
    /// Largest staleness: steps by which the weights that sampled a group may lie behind those that it trains.
    pub max_staleness: u64,
    /// How the staleness of groups is kept within its limit.
    pub staleness: StalenessHandling,
    /// Equal minibatches in which a batch is sent.
    pub parts: NonZeroUsize,
    /// Optimizer steps per batch.
    pub substeps: NonZeroUsize,
    /// Steps between two publications of the weights.
    pub publish_every: NonZeroU64,
    /// Fewest members with a reward that a group needs to be trained.
    pub min_members: NonZeroUsize,
    /// How often a failed member is resampled.
    pub replays: u32,
    /// How groups whose rewards are all equal are handled.
    pub constant: ConstantGroups,
    /// Which units have equal weight in the loss.
    pub weighting: LossWeighting,
    /// How the step size changes.
    pub rate: LearningRateSchedule,
    /// Gap between sampled and trained logprobs above which an alarm is raised.
    pub kl_alarm: Option<f64>,
    /// Mean gap in nats between sampled and trained logprobs of the first step at which the run ends; 0 for no limit.
    pub max_first_gap: f64,
    /// Multiple of the largest recent gradient norm at which gradients are clipped; 0 for no such limit.
    pub clip_multiple: f64,
    /// Penalty per nat of drift from the reference; 0 for no reference.
    pub kl_penalty: f32,
    /// Sampler weights of the reference; `None` for the base model.
    pub kl_reference: Option<String>,
}

/// Most groups in flight.
const MOST_CREDITS: u64 = 1 << 14;
/// Largest value of keys that count steps of staleness.
const MOST_STEPS: u64 = 1000;
/// Mean gap in nats from which sampler and trainer cannot hold the same model: a factor of 1.6 in probability.
const MAX_FIRST_GAP: f64 = 0.5;
/// Twice the largest jump above the norms before that was seen in any step of the shipped configs (docs/learning.md).
const CLIP_MULTIPLE: f64 = 4.0;
/// Default bound on staleness, per batch that may be in flight. Credits keep the mean staleness at
/// `async_off_policy_steps`; the bound makes the trainer wait for stragglers, and with this one a step takes at most 3 %
/// longer than without a bound, for the heaviest tails of docs/simulate.md.
const STALENESS_PER_BATCH: u64 = 64;
/// Ways to handle a group with failed members.
pub(super) const ON_MEMBER_FAILURE: [&str; 3] = ["survivors", "retry", "drop"];
/// How often a failed member is resampled with `on_member_failure = "retry"`.
const REPLAYS: u32 = 2;

impl BatchingPlan {
    /// Checks the keys for groups of `group_size` members.
    ///
    /// # Errors
    /// The invalid key, and what is wrong with it.
    pub fn decide(file: &ConfigFile, group_size: u32) -> Result<Self, (&'static str, String)> {
        let trainer = &file.trainer;
        let count = |key, value: usize| at_least_one(value).map_err(|problem| (key, problem));
        let groups_per_batch = count("trainer.groups_per_batch", trainer.groups_per_batch.unwrap_or(4))?;
        let substeps = count("trainer.num_substeps", trainer.num_substeps.unwrap_or(1))?;
        let minibatches = count("trainer.stream_minibatches", trainer.stream_minibatches.unwrap_or(1))?;
        let parts = substeps.saturating_mul(minibatches);
        if !groups_per_batch.get().is_multiple_of(parts.get()) {
            let problem = format!(
                "is {groups_per_batch}, it must be a multiple of num_substeps * stream_minibatches = {parts}, so that \
                 all parts of a batch have one size"
            );
            return Err(("trainer.groups_per_batch", problem));
        }
        let max_steps_off_policy = trainer.async_off_policy_steps.unwrap_or(2);
        if max_steps_off_policy > MOST_STEPS {
            let problem = format!("is {max_steps_off_policy}, it must be at most {MOST_STEPS}");
            return Err(("trainer.async_off_policy_steps", problem));
        }
        let credits = (groups_per_batch.get() as u64).saturating_mul(max_steps_off_policy + 1);
        if credits > MOST_CREDITS {
            let problem = format!(
                "is {groups_per_batch}: with async_off_policy_steps = {max_steps_off_policy}, {credits} groups would \
                 be in flight, at most {MOST_CREDITS} are possible"
            );
            return Err(("trainer.groups_per_batch", problem));
        }
        let publish_every = NonZeroU64::new(trainer.publish_every.unwrap_or(1))
            .filter(|every| every.get() <= MOST_STEPS)
            .ok_or_else(|| {
                (
                    "trainer.publish_every",
                    format!(
                        "is {}, it must lie between 1 and {MOST_STEPS}",
                        trainer.publish_every.unwrap_or(1)
                    ),
                )
            })?;
        let staleness =
            choose(trainer.staleness.as_deref(), STALENESS).map_err(|p| ("trainer.staleness", p))?;
        // Rollouts of equal length are as old as the batches in flight and the steps between two publications make
        // them.
        let unpublished = publish_every.get() - 1;
        let natural = max_steps_off_policy + unpublished;
        let wide = (STALENESS_PER_BATCH * max_steps_off_policy + unpublished).min(2 * MOST_STEPS);
        let max_staleness = trainer.max_staleness.unwrap_or(match staleness {
            StalenessHandling::Wait => wide,
            StalenessHandling::Drop => natural,
        });
        let least = if staleness == StalenessHandling::Wait { natural } else { unpublished };
        if max_staleness < least || max_staleness > 2 * MOST_STEPS {
            let problem = format!(
                "is {max_staleness}, it must be at least {least}: async_off_policy_steps = {max_steps_off_policy} and \
                 publish_every = {publish_every} make rollouts so old; lower those, or set staleness = \"drop\""
            );
            return Err(("trainer.max_staleness", problem));
        }
        let (min_members, replays) = members(file, group_size)?;
        let constant = choose(trainer.constant_groups.as_deref(), CONSTANT)
            .map_err(|problem| ("trainer.constant_groups", problem))?;
        let weighting = choose(trainer.loss_weighting.as_deref(), WEIGHTINGS)
            .map_err(|problem| ("trainer.loss_weighting", problem))?;
        let kl_alarm = trainer.kl_alarm;
        if let Some(limit) = kl_alarm.filter(|limit| !(*limit > 0.0 && limit.is_finite())) {
            return Err(("trainer.kl_alarm", format!("is {limit}, it must be a positive number of nats")));
        }
        let max_first_gap = trainer.max_first_gap.unwrap_or(MAX_FIRST_GAP);
        if !(max_first_gap >= 0.0 && max_first_gap.is_finite()) {
            let problem = format!("is {max_first_gap}, it must be a number of nats, or 0 for no bound");
            return Err(("trainer.max_first_gap", problem));
        }
        let (kl_penalty, kl_reference) = reference(trainer)?;
        let optim = &file.optim;
        let clip_multiple = clip_multiple(optim)?;
        let course = choose(optim.lr_schedule.as_deref(), COURSES).map_err(|p| ("optim.lr_schedule", p))?;
        let floor = optim.lr_floor.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&floor) {
            return Err((
                "optim.lr_floor",
                format!("is {floor}, it must lie in [0, 1]: a share of the learning rate"),
            ));
        }
        if optim.lr_floor.is_some() && course == LearningRateDecay::Constant {
            return Err(("optim.lr_floor", "has no effect without `optim.lr_schedule`".into()));
        }
        let rate = LearningRateSchedule { decay: course, warmup: optim.warmup_steps.unwrap_or(0), floor };
        Ok(Self {
            groups_per_batch,
            max_steps_off_policy,
            max_staleness,
            staleness,
            parts,
            substeps,
            publish_every,
            min_members,
            replays,
            constant,
            weighting,
            rate,
            kl_alarm,
            max_first_gap,
            clip_multiple,
            kl_penalty,
            kl_reference,
        })
    }
}

/// Multiple for the running limit of gradient norms. A norm in the config replaces it.
fn clip_multiple(optim: &OptimConfig) -> Result<f64, (&'static str, String)> {
    let key = "optim.grad_clip_multiple";
    match optim.grad_clip_multiple {
        None if optim.grad_clip_norm.is_some() => Ok(0.0),
        None => Ok(CLIP_MULTIPLE),
        Some(_) if optim.grad_clip_norm.is_some() => {
            Err((key, "cannot be given beside `optim.grad_clip_norm`, which sets a limit of its own".into()))
        }
        // Below 1 each step would shrink the next one's limit.
        Some(multiple) if multiple == 0.0 || (multiple >= 1.0 && multiple.is_finite()) => Ok(multiple),
        Some(multiple) => Err((key, format!("is {multiple}, it must be at least 1, or 0 for no limit"))),
    }
}

/// Fewest members with a reward, and how often a failed one is resampled.
fn members(file: &ConfigFile, group_size: u32) -> Result<(NonZeroUsize, u32), (&'static str, String)> {
    let all = NonZeroUsize::new(group_size as usize).unwrap_or(NonZeroUsize::MIN);
    // Three of four: few enough for a fault here and there, enough for a baseline.
    let most = NonZeroUsize::new((group_size as usize * 3).div_ceil(4)).unwrap_or(NonZeroUsize::MIN);
    let [survivors, retry, drop] = ON_MEMBER_FAILURE;
    let (default, replays) = choose(
        file.trainer.on_member_failure.as_deref(),
        &[(survivors, (most, 0)), (retry, (most, REPLAYS)), (drop, (all, 0))],
    )
    .map_err(|problem| ("trainer.on_member_failure", problem))?;
    match file.trainer.min_members {
        None => Ok((default, replays)),
        Some(_) if default == all && all != most => {
            Err(("trainer.min_members", "has no effect with on_member_failure = \"drop\"".into()))
        }
        Some(given) => NonZeroUsize::new(given)
            .filter(|given| *given <= all)
            .map(|given| (given, replays))
            .ok_or_else(|| ("trainer.min_members", format!("is {given}, it must lie between 1 and {all}"))),
    }
}

/// Penalty per nat of drift, and the reference weights if they are not the base model's.
fn reference(trainer: &TrainerConfig) -> Result<(f32, Option<String>), (&'static str, String)> {
    let coef = trainer.kl_penalty_coef.unwrap_or(0.0);
    if !(0.0..=1e3).contains(&coef) {
        return Err(("trainer.kl_penalty_coef", format!("is {coef}, it must lie between 0 and 1000")));
    }
    let written = trainer.kl_reference.as_deref();
    if written.is_some() && coef == 0.0 {
        return Err(("trainer.kl_reference", "has no effect without `trainer.kl_penalty_coef`".into()));
    }
    match (written, written.and_then(|written| written.strip_prefix("pinned:"))) {
        (None | Some("base"), _) => Ok((coef as f32, None)),
        (_, Some(path)) if !path.is_empty() => Ok((coef as f32, Some(path.to_owned()))),
        (Some(other), _) => Err((
            "trainer.kl_reference",
            format!("is \"{other}\", it must be one of: base, pinned:<path of sampler weights>"),
        )),
    }
}

pub(super) const STALENESS: &[(&str, StalenessHandling)] =
    &[("wait", StalenessHandling::Wait), ("drop", StalenessHandling::Drop)];
pub(super) const CONSTANT: &[(&str, ConstantGroups)] =
    &[("keep", ConstantGroups::Keep), ("drop", ConstantGroups::Drop), ("replace", ConstantGroups::Replace)];
pub(super) const WEIGHTINGS: &[(&str, LossWeighting)] =
    &[("token", LossWeighting::Token), ("sequence", LossWeighting::Sequence)];
pub(super) const COURSES: &[(&str, LearningRateDecay)] = &[
    ("constant", LearningRateDecay::Constant),
    ("linear", LearningRateDecay::Linear),
    ("cosine", LearningRateDecay::Cosine),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(text: &str) -> Result<BatchingPlan, (&'static str, String)> {
        BatchingPlan::decide(&toml::from_str(text).unwrap(), 8)
    }

    #[test]
    fn what_does_not_fit_together_names_its_key() {
        for (key, text) in [
            ("trainer.groups_per_batch", "groups_per_batch = 6\nstream_minibatches = 4"),
            ("trainer.groups_per_batch", "groups_per_batch = 4\nstream_minibatches = 2\nnum_substeps = 4"),
            ("trainer.groups_per_batch", "groups_per_batch = 10000"),
            ("trainer.max_staleness", "async_off_policy_steps = 2\nmax_staleness = 1"),
            ("trainer.max_staleness", "publish_every = 4\nmax_staleness = 2\nstaleness = \"drop\""),
            ("trainer.staleness", "staleness = \"hope\""),
            ("trainer.min_members", "min_members = 9"),
            ("trainer.min_members", "min_members = 3\non_member_failure = \"drop\""),
            ("trainer.publish_every", "publish_every = 0"),
            ("trainer.kl_alarm", "kl_alarm = -1"),
            ("trainer.max_first_gap", "max_first_gap = -0.1"),
            ("trainer.kl_penalty_coef", "kl_penalty_coef = -1"),
            ("trainer.kl_reference", "kl_reference = \"base\""),
            ("trainer.kl_reference", "kl_penalty_coef = 0.1\nkl_reference = \"latest\""),
            ("optim.lr_floor", "[optim]\nlr_floor = 2"),
            ("optim.lr_floor", "[optim]\nlr_floor = 0.1"),
            ("optim.grad_clip_multiple", "[optim]\ngrad_clip_multiple = 0.5"),
            ("optim.grad_clip_multiple", "[optim]\ngrad_clip_multiple = 4\ngrad_clip_norm = 1"),
            ("optim.lr_schedule", "[optim]\nlr_schedule = \"square\""),
        ] {
            let text = if text.starts_with('[') { text.into() } else { format!("[trainer]\n{text}") };
            assert_eq!(decide(&text).map_err(|(key, _)| key), Err(key), "{text}");
        }
    }

    #[test]
    fn staleness_follows_from_depth_and_publication_unless_it_is_set() {
        let staleness = |text: &str| decide(&format!("[trainer]\n{text}")).unwrap().max_staleness;
        assert_eq!(staleness("async_off_policy_steps = 3"), 3 * 64);
        assert_eq!(staleness("async_off_policy_steps = 0"), 0);
        assert_eq!(staleness("async_off_policy_steps = 1\npublish_every = 4"), 64 + 3);
        assert_eq!(staleness("async_off_policy_steps = 3\nstaleness = \"drop\""), 3);
        assert_eq!(staleness("async_off_policy_steps = 3\nstaleness = \"drop\"\nmax_staleness = 1"), 1);
        assert_eq!(staleness("async_off_policy_steps = 1\nmax_staleness = 5"), 5);
    }

    #[test]
    fn members_may_fail_as_the_config_allows() {
        let members = |text: &str| {
            let batching = decide(&format!("[trainer]\n{text}")).unwrap();
            (batching.min_members.get(), batching.replays)
        };
        assert_eq!(members(""), (6, 0));
        assert_eq!(members("on_member_failure = \"retry\""), (6, 2));
        assert_eq!(members("on_member_failure = \"drop\""), (8, 0));
        assert_eq!(members("min_members = 2"), (2, 0));
    }
}
