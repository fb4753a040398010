//! The options of the stages, from the tables of the config.

use super::choice::chosen;
use super::error::{KeyProblem, at_most, ensure};
use super::file::ConfigFile;
use super::service::ServicePlan;
use super::teacher::TeacherPlan;
use super::trainer::MemberFailureHandling;
use super::{plan, rewards, supervised, trainer};
use minds_stages::evaluator::EvaluatorOptions;
use minds_stages::ledger::UNANSWERED;
use minds_stages::pipeline::{PipelineOptions, batches_ahead};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

const EVALUATED_ITEMS: NonZeroU64 = NonZeroU64::new(64).expect("64 is not 0");
const EVALUATED_AT_A_TIME: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not 0");
/// Most items of one environment in an evaluation.
const MOST_EVALUATED: NonZeroU64 = NonZeroU64::new(1_000_000).expect("1000000 is not 0");
/// Most samples of one item in an evaluation.
const MOST_SAMPLES: NonZeroU32 = NonZeroU32::new(4096).expect("4096 is not 0");
/// Restarts of each stage after a panic.
const RESTARTS: u32 = 3;
/// How often a failed member is resampled with `on_member_failure = "retry"`.
const RESAMPLES: u32 = 2;
/// Consecutive failed groups after which the run ends, in batches.
const FAILED_BATCHES: u64 = 3;
/// Fewest consecutive groups with only raised rewards that end the run; larger batches need a whole batch of them.
const RAISED_GROUPS: u64 = 3;
/// Consecutive replaced groups without signal after which the run ends, in batches.
const REPLACED_BATCHES: u64 = 30;

/// Sizes and limits of the pipeline.
pub(super) fn pipeline(file: &ConfigFile, service: &ServicePlan) -> Result<PipelineOptions, KeyProblem> {
    let mut batch = trainer::batch(&file.trainer)?;
    if let Some(teacher) = &file.teacher {
        TeacherPlan::adapt(teacher, &mut batch)?;
    }
    let train = trainer::train(file)?;
    let groups = batch.groups_per_batch.get() as u64;
    let max_steps_off_policy = trainer::max_steps_off_policy(&file.trainer, batch.groups_per_batch)?;
    let members = trainer::group_size(&file.trainer)?.get() as u64;
    let rollouts_in_flight =
        groups.saturating_mul(batches_ahead(max_steps_off_policy, train.weights) + 1).saturating_mul(members);
    let unanswered = plan::time("run.give_up_after", file.run.give_up_after.as_deref())?;
    let mut options = PipelineOptions {
        seed: file.trainer.seed.unwrap_or(0),
        max_steps_off_policy,
        max_staleness: trainer::max_staleness(&file.trainer, max_steps_off_policy, train.publish_every)?,
        resamples: match chosen(file.trainer.on_member_failure) {
            MemberFailureHandling::Retry => RESAMPLES,
            MemberFailureHandling::Survivors | MemberFailureHandling::Drop => 0,
        },
        scorers: rewards::scorers(&file.scorer, rollouts_in_flight)?,
        restarts: RESTARTS,
        max_failed_in_a_row: FAILED_BATCHES * groups,
        max_raised_in_a_row: groups.max(RAISED_GROUPS),
        unanswered: unanswered.unwrap_or(UNANSWERED),
        max_replaced_in_a_row: REPLACED_BATCHES * groups,
        retry: service.retry(),
        batch,
        train,
        evaluate: (eval_every(file) > 0).then(|| evaluation(file)).transpose()?,
    };
    if file.sft.is_some() {
        supervised::adapt(&mut options);
    }
    Ok(options)
}

/// Steps between two evaluations; 0 for none.
pub(super) fn eval_every(file: &ConfigFile) -> u64 {
    let usual = if file.sft.is_some() { supervised::EVAL_EVERY.get() } else { 0 };
    file.trainer.eval_every.unwrap_or(usual)
}

/// Size and interval of evaluations; of a run without any, the interval is 1.
pub(super) fn evaluation(file: &ConfigFile) -> Result<EvaluatorOptions, KeyProblem> {
    let items = file.eval.episodes.unwrap_or(EVALUATED_ITEMS);
    let samples = file.eval.samples_per_item.unwrap_or(NonZeroU32::MIN);
    let success_at = file.eval.success_at.unwrap_or(1.0);
    Ok(EvaluatorOptions {
        every: NonZeroU64::new(eval_every(file)).unwrap_or(NonZeroU64::MIN),
        items: at_most("eval.episodes", items, MOST_EVALUATED)?,
        samples_per_item: at_most("eval.samples_per_item", samples, MOST_SAMPLES)?,
        success_at: ensure("eval.success_at", success_at, success_at.is_finite(), "be a finite reward")?,
        concurrency: file.eval.concurrency.unwrap_or(EVALUATED_AT_A_TIME),
    })
}
