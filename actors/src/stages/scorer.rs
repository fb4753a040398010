//! Scores each rollout as soon as it has ended, while its siblings are still being sampled.
//!
//! Every member leaves exactly once, with a reward or with the cause of its absence; a failure never becomes a
//! number. How many rewards are computed at a time is the capacity of the stage's mailbox. A rollout whose reward failed
//! for good, and not because of the run's own limits, is reported as [`PipelineEvent::Quarantined`] for inspection.

use crate::generate::RolloutGenerator;
use crate::mailbox::{MailboxSender, StageMessage};
use crate::messages::{
    Drift, QuarantinedRollout, RewardedRollout, RolloutFailure, SampledRollout, ScoredRollout,
};
use crate::pipeline::PipelineEvent;
use crate::policy::{LogprobOracle, Policy, QueryBudget};
use crate::telemetry::StageBoard;
use actix::prelude::{Actor, Context, Handler};
use async_trait::async_trait;
use futures::future::{try_join, try_join_all};
use minds_core::datum::Datum;
use minds_core::environment::{LogprobDelta, Oracle};
use minds_core::ids::Token;
use minds_core::reward::RewardError;
use minds_core::rollout::Rollout;
use minds_core::service::SamplingBackend;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::Instrument as _;

const NAME: &str = "scorer";

/// The weights that answer logprob queries of rewards.
#[derive(Clone)]
pub enum LogprobSource {
    /// The version that sampled the group.
    Sampled,
    /// The newest version when the reward is computed. Members of a group may then be scored under different versions.
    Latest,
    /// Weights that the run does not change.
    Fixed(Arc<dyn SamplingBackend>),
}

/// The oracles of a [`LogprobSource`], with their caches.
#[derive(Clone)]
pub(crate) enum ScoringOracles {
    Sampled,
    Latest,
    Fixed(Arc<LogprobOracle>),
}

impl ScoringOracles {
    pub(crate) fn new(source: LogprobSource, queries: &Arc<QueryBudget>) -> Self {
        match source {
            LogprobSource::Sampled => Self::Sampled,
            LogprobSource::Latest => Self::Latest,
            LogprobSource::Fixed(sampler) => {
                Self::Fixed(Arc::new(LogprobOracle::new(sampler, queries.clone(), None)))
            }
        }
    }

    pub(crate) fn oracle<'a>(&'a self, sampled: &'a Policy, latest: &'a Policy) -> ScoringOracle<'a> {
        let (log_probs, steps) = match self {
            Self::Sampled => (&sampled.oracle, &sampled.oracle),
            Self::Latest => (&latest.oracle, &latest.oracle),
            Self::Fixed(fixed) => (&**fixed, &sampled.oracle),
        };
        ScoringOracle { log_probs, steps }
    }
}

/// The oracle of one reward. Gradient steps always start from the policy, even if other weights answer logprob queries.
pub(crate) struct ScoringOracle<'a> {
    log_probs: &'a LogprobOracle,
    steps: &'a LogprobOracle,
}

#[async_trait]
impl Oracle for ScoringOracle<'_> {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        self.log_probs.logprobs(prefix, target).await
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        self.log_probs.next_tokens(prefix, k).await
    }

    async fn logprob_delta(
        &self,
        text: Datum,
        prefix: Arc<[Token]>,
        target: Arc<[Token]>,
    ) -> Result<LogprobDelta, RewardError> {
        self.steps.logprob_delta(text, prefix, target).await
    }
}

/// The third stage. Cheap to clone: each rollout is scored by a task of its own.
#[derive(Clone)]
pub struct Scorer {
    /// Oracles that answer logprob queries of rewards.
    pub(crate) oracles: ScoringOracles,
    /// Returns logprobs of the completions under the reference weights, if there are any.
    pub(crate) reference: Option<Arc<LogprobOracle>>,
    /// The newest published weights.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Computes rewards with retries and time limits.
    pub generator: RolloutGenerator,
    /// Where the stage publishes its snapshot.
    pub board: StageBoard,
    /// Mailbox of the batcher.
    pub scored: MailboxSender<ScoredRollout>,
    /// Receives the quarantined rollouts.
    pub events: mpsc::Sender<PipelineEvent>,
}

impl Actor for Scorer {
    type Context = Context<Self>;
}

impl Handler<StageMessage<SampledRollout>> for Scorer {
    type Result = ();

    fn handle(&mut self, message: StageMessage<SampledRollout>, _: &mut Self::Context) {
        let (sampled, permit) = message.open();
        let stage = self.clone();
        let span = sampled.group.span.clone();
        let judging = async move {
            tokio::select! {
                () = stage.process(sampled) => {}
                () = stage.scored.closed() => {} // nobody will take the reward
            }
            drop(permit);
        };
        tokio::spawn(judging.instrument(span));
    }
}

impl Scorer {
    async fn process(&self, sampled: SampledRollout) {
        let begun = Instant::now();
        self.board.update(NAME, |s| s.busy += 1);
        let meters = &self.generator.meters;
        let environment = &sampled.group.component.name;
        let outcome = match &sampled.outcome {
            Ok(rollout) => match self.score(&sampled, rollout).await {
                Ok(scored) => {
                    sampled.group.credit.add_tokens(rollout.sampled_tokens());
                    meters.scored(environment, scored.score.reward.get().into(), begun.elapsed());
                    Ok(scored)
                }
                Err(missing) => {
                    meters.missing(environment, &missing, rollout.sampled_tokens());
                    Err((RolloutFailure::from(&missing), Some(missing)))
                }
            },
            Err(why) => {
                let failed = sampled.score.as_ref().and_then(|score| score.as_ref().err());
                if let Some(failed) = failed {
                    let tokens = failed.turns.iter().map(|turn| turn.completion.tokens.len()).sum();
                    meters.missing(environment, &failed.cause, tokens);
                }
                Err((why.clone(), failed.map(|failed| failed.cause.clone())))
            }
        };
        if let Err((_, Some(RewardError::Environment(_) | RewardError::NotFinite(_)))) = &outcome {
            sampled.group.credit.add_environment_error(sampled.group.component.group_size.get());
        }
        let quarantined = outcome
            .as_ref()
            .err()
            .and_then(|(_, missing)| missing.clone())
            .filter(RewardError::needs_quarantine);
        let quarantined = quarantined.map(|missing| QuarantinedRollout::new(&sampled, missing));
        let outcome = outcome.map_err(|(why, _)| why);
        self.board.update(NAME, |s| {
            s.busy -= 1;
            if outcome.is_ok() { s.done += 1 } else { s.failed += 1 }
        });
        let SampledRollout { group, member, .. } = sampled;
        // A refusal means that the run is over; dropping the last member returns the credit.
        drop(self.scored.send(ScoredRollout { group, member, outcome }).await);
        if let Some(quarantined) = quarantined {
            // The receiver of events may be gone; then the event is dropped.
            drop(self.events.send(PipelineEvent::Quarantined(quarantined)).await);
        }
    }

    async fn score(
        &self,
        sampled: &SampledRollout,
        rollout: &Rollout,
    ) -> Result<RewardedRollout, RewardError> {
        let latest = self.policy.borrow().clone();
        let oracle = self.oracles.oracle(&sampled.policy, &latest);
        let judging = async {
            match &sampled.score {
                Some(score) => score.clone().map_err(|failed| failed.cause),
                None => {
                    self.generator
                        .score(&sampled.group.component, &sampled.group.item, rollout, &oracle)
                        .await
                }
            }
        };
        let (score, drift) = try_join(judging, self.drift(rollout)).await?;
        Ok(RewardedRollout { rollout: rollout.clone(), score, drift })
    }

    async fn drift(&self, rollout: &Rollout) -> Result<Drift, RewardError> {
        let Some(reference) = &self.reference else { return Ok(Drift::new()) };
        try_join_all(rollout.turns.iter().map(|turn| async move {
            let ask = || reference.logprobs(turn.prompt.clone(), turn.completion.tokens[..].into());
            let logprobs = self.generator.retry.run("reference", ask).await?;
            Ok(turn.completion.logprobs.iter().zip(logprobs.iter()).map(|(now, then)| now - then).collect())
        }))
        .await
    }
}
