//! The `[sft]` table: a run that imitates conversations.

use super::choice::chosen;
use super::environments::EnvPlan;
use super::error::{KeyProblem, ensure};
use super::file::{ConfigFile, EnvConfig, SupervisedConfig};
use super::nats::Transport;
use minds_core::loss::Loss;
use minds_core::service::SamplerWeights;
use minds_environments::demonstrations::{DemonstrationOptions, DemonstrationSplit};
use minds_environments::worker::PythonOptions;
use minds_stages::pipeline::PipelineOptions;
use serde_json::Map;
use std::num::NonZeroU64;

/// Share of the rows that is held out by default.
const HELD_OUT: f64 = 0.05;
/// Largest share that may be held out.
const MOST_HELD_OUT: f64 = 0.9;
/// Steps between two evaluations by default.
pub(super) const EVAL_EVERY: NonZeroU64 = NonZeroU64::new(20).expect("20 is not 0");

/// Conversations to imitate or to measure.
#[derive(Clone, Debug)]
pub struct DemonstrationPlan {
    /// The file and the turns that are imitated.
    pub options: DemonstrationOptions,
    /// Which of its rows.
    pub split: DemonstrationSplit,
}

/// The rows that are trained, and those that are held out, as environments of the run.
pub(super) fn environments(file: &ConfigFile) -> Result<Vec<EnvPlan>, KeyProblem> {
    let Some(sft) = &file.sft else { return Ok(Vec::new()) };
    let held_out = sft.held_out.unwrap_or(HELD_OUT);
    let must = format_args!("lie between 0 and {MOST_HELD_OUT}");
    ensure("sft.held_out", held_out, (0.0..=MOST_HELD_OUT).contains(&held_out), must)?;
    if sft.data.is_empty() {
        return Err(KeyProblem::new("sft.data", "is empty: name a file with one conversation a row"));
    }
    if chosen(file.scorer.transport) == Transport::Nats {
        let problem = "is \"nats\", and a run that imitates has nothing to hand to workers: leave it out";
        return Err(KeyProblem::new("scorer.transport", problem));
    }
    let options = DemonstrationOptions { data: sft.data.clone(), train_on: chosen(sft.train_on), held_out };
    let plan = |name: &str, weight: f64, split: DemonstrationSplit| EnvPlan {
        key: "sft".into(),
        name: name.into(),
        weight,
        options: PythonOptions::new(name, Map::new(), file.trainer.seed.unwrap_or(0)),
        written: EnvConfig { id: name.into(), ..EnvConfig::default() },
        only_python: None,
        evaluate_every: None,
        demonstrations: Some(DemonstrationPlan { options: options.clone(), split }),
    };
    let mut plans = vec![plan("sft", 1.0, DemonstrationSplit::Train)];
    if held_out > 0.0 {
        plans.push(plan("sft_held_out", 0.0, DemonstrationSplit::HeldOut));
    }
    Ok(plans)
}

/// Number of passes over the rows, if it decides when the run ends.
pub(super) fn epochs(file: &ConfigFile) -> Result<Option<NonZeroU64>, KeyProblem> {
    let Some(SupervisedConfig { epochs, .. }) = &file.sft else { return Ok(None) };
    match (epochs, file.trainer.total_batches) {
        (Some(_), Some(_)) => {
            let problem = "cannot be combined with trainer.total_batches: use one of them";
            Err(KeyProblem::new("sft.epochs", problem))
        }
        (None, Some(_)) => Ok(None),
        (epochs, None) => Ok(Some(epochs.unwrap_or(NonZeroU64::MIN))),
    }
}

/// Sets what follows from imitation: the loss, and that weights are published only to be evaluated or saved.
pub(super) fn adapt(options: &mut PipelineOptions) {
    options.train.loss = Loss::CrossEntropy;
    options.train.weights = SamplerWeights::Snapshot;
    options.train.publish_every = options.evaluate.map_or(NonZeroU64::MAX, |evaluation| evaluation.every);
}
