//! Scores each rollout as soon as it has ended, while its siblings are still being sampled.
//!
//! Every member leaves exactly once, with a reward or with the cause of its absence; a failure never becomes a
//! number. How many rewards are computed at a time is the capacity of the stage's mailbox. A rollout whose reward failed
//! for good, and not because of the run's own limits, is reported as [`PipelineEvent::Quarantined`] for inspection.
//!
//! The actor opens its mailbox and spawns one task per rollout; the tasks share one [`RolloutScorer`].

use crate::generate::RolloutGenerator;
use crate::mailbox::{MailboxSender, StageMessage};
use crate::messages::{Drift, Group, QuarantinedRollout, RolloutError, ScoredRollout};
use crate::policy::{LogprobOracle, Policy, QueryBudget};
use crate::stages::event::PipelineEvent;
use crate::stages::sampler::SampledRollout;
use crate::telemetry::StageBoard;
use actix::prelude::{Actor, Context, Handler};
use async_trait::async_trait;
use futures::future::{try_join, try_join_all};
use minds_core::chat::{Message, Role};
use minds_core::datum::Datum;
use minds_core::environment::{LogprobDelta, Oracle};
use minds_core::ids::Token;
use minds_core::reward::{RewardError, Score};
use minds_core::rollout::{Rollout, Turn};
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

/// A model that rollouts are compared with, token by token.
#[derive(Clone)]
pub struct ReferenceModel {
    /// Its weights, which the run does not change.
    pub sampler: Arc<dyn SamplingBackend>,
    /// Messages that it reads before the conversation, and the policy does not: instructions, or examples.
    pub context: Arc<[Message]>,
}

/// A reference with its cache.
pub(crate) struct RolloutReference {
    oracle: LogprobOracle,
    context: Arc<[Message]>,
}

impl RolloutReference {
    pub(crate) fn new(model: ReferenceModel, queries: &Arc<QueryBudget>) -> Self {
        let oracle = LogprobOracle::new(model.sampler, queries.clone(), None);
        Self { oracle, context: model.context }
    }

    /// What the reference reads before the completion of a turn.
    fn prompt(&self, group: &Group, rollout: &Rollout, turn: &Turn) -> Result<Arc<[Token]>, RewardError> {
        if self.context.is_empty() {
            return Ok(turn.prompt.clone());
        }
        let renderer = &group.component.renderer;
        let opening = rollout.prompt(&group.item);
        let own = renderer.prompt(opening)?;
        let rest = turn.prompt.strip_prefix(&own[..]).ok_or_else(|| {
            RewardError::Unsupported(format!(
                "a teacher with messages of its own for {}, whose prompts do not begin with the tokens of their first messages",
                group.component.name
            ))
        })?;
        let mut prompt = renderer.prompt(&with_context(&self.context, opening))?;
        prompt.extend_from_slice(rest);
        Ok(prompt.into())
    }
}

/// A conversation behind further messages. Two system messages become one: templates take a single one, at the start.
fn with_context(context: &[Message], conversation: &[Message]) -> Vec<Message> {
    match (context, conversation) {
        ([ours, examples @ ..], [theirs, rest @ ..])
            if ours.role == Role::System && theirs.role == Role::System =>
        {
            let system = Message::system(format!("{}\n\n{}", ours.content, theirs.content));
            [&[system], examples, rest].concat()
        }
        (examples, [theirs, rest @ ..]) if theirs.role == Role::System => {
            [std::slice::from_ref(theirs), examples, rest].concat()
        }
        _ => [context, conversation].concat(),
    }
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

/// The third stage: gives each rollout its reward.
pub struct Scorer(pub Arc<RolloutScorer>);

/// Scores any number of rollouts at a time.
pub struct RolloutScorer {
    /// Oracles that answer logprob queries of rewards.
    pub(crate) oracles: ScoringOracles,
    /// Returns logprobs of the completions under the reference, if there is one.
    pub(crate) reference: Option<RolloutReference>,
    /// The newest published weights.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Computes rewards with retries and time limits.
    pub generator: RolloutGenerator,
    /// Where the stage publishes its snapshot.
    pub board: StageBoard,
    /// Mailbox of the batcher.
    pub scored: MailboxSender<(Arc<Group>, ScoredRollout)>,
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
        let scorer = self.0.clone();
        let span = sampled.group.span.clone();
        let scoring = async move {
            tokio::select! {
                () = scorer.process(sampled) => {}
                () = scorer.scored.closed() => {} // nobody will take the reward
            }
            drop(permit);
        };
        tokio::spawn(scoring.instrument(span));
    }
}

impl RolloutScorer {
    async fn process(&self, sampled: SampledRollout) {
        let begun = Instant::now();
        self.board.update(NAME, |s| s.busy += 1);
        let SampledRollout { group, policy, mut rollout, score } = sampled;
        let scored = match score {
            Ok(score) => self.score(&group, &policy, &rollout, score).await.map_err(RolloutError::Reward),
            Err(why) => Err(why),
        };
        self.count(&group, &rollout, &scored, begun);
        let quarantined = match &scored {
            Err(RolloutError::Reward(cause)) if cause.needs_quarantine() => {
                Some(QuarantinedRollout::new(&group, &mut rollout, cause.clone()))
            }
            _ => None,
        };
        let (score, drift) = match scored {
            Ok((score, drift)) => (Ok(score), drift),
            Err(why) => (Err(why), Drift::new()),
        };
        // A refusal means that the run is over; dropping the last member returns the credit.
        drop(self.scored.send((group, ScoredRollout { rollout, score, drift })).await);
        if let Some(quarantined) = quarantined {
            // The receiver of events may be gone; then the event is dropped.
            drop(self.events.send(PipelineEvent::Quarantined(quarantined)).await);
        }
    }

    /// Records a result in the credit, the metrics and the snapshot.
    fn count(
        &self,
        group: &Group,
        rollout: &Rollout,
        scored: &Result<(Score, Drift), RolloutError>,
        begun: Instant,
    ) {
        let meters = &self.generator.meters;
        let environment = &group.component.name;
        let tokens = rollout.sampled_tokens();
        match scored {
            Ok((score, _)) => {
                group.credit.add_tokens(tokens);
                meters.scored(environment, score.reward.get().into(), begun.elapsed());
            }
            Err(RolloutError::Reward(cause)) => {
                meters.missing(environment, cause, tokens);
                if cause.is_environment_fault() {
                    group.credit.add_environment_error(group.component.group_size.get());
                }
            }
            Err(_) => {}
        }
        self.board.update(NAME, |s| {
            s.busy -= 1;
            if scored.is_ok() { s.done += 1 } else { s.failed += 1 }
        });
    }

    /// The reward and the drift of a rollout; its environment may have computed the reward already.
    async fn score(
        &self,
        group: &Group,
        policy: &Policy,
        rollout: &Rollout,
        computed: Option<Score>,
    ) -> Result<(Score, Drift), RewardError> {
        let latest = self.policy.borrow().clone();
        let oracle = self.oracles.oracle(policy, &latest);
        let scoring = async {
            match computed {
                Some(score) => Ok(score),
                None => self.generator.score(&group.component, &group.item, rollout, &oracle).await,
            }
        };
        try_join(scoring, self.drift(group, rollout)).await
    }

    async fn drift(&self, group: &Group, rollout: &Rollout) -> Result<Drift, RewardError> {
        let Some(reference) = &self.reference else { return Ok(Drift::new()) };
        try_join_all(rollout.turns.iter().map(|turn| async move {
            let prompt = reference.prompt(group, rollout, turn)?;
            let ask = || reference.oracle.logprobs(prompt.clone(), turn.completion.tokens[..].into());
            let logprobs = self.generator.retry.run("reference", ask).await?;
            Ok(turn.completion.logprobs.iter().zip(logprobs.iter()).map(|(now, then)| now - then).collect())
        }))
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_of_a_teacher_stand_before_the_conversation_behind_one_system_message() {
        let system = |text: &str| Message::system(text);
        let question = Message::user("q");
        let example = [Message::user("e"), Message::assistant("a")];
        let [one, two] = &example;
        for (context, conversation, expected) in [
            (vec![system("t")], vec![question.clone()], vec![system("t"), question.clone()]),
            (
                vec![system("t")],
                vec![system("s"), question.clone()],
                vec![system("t\n\ns"), question.clone()],
            ),
            (
                example.to_vec(),
                vec![system("s"), question.clone()],
                vec![system("s"), one.clone(), two.clone(), question.clone()],
            ),
            (
                vec![system("t"), one.clone(), two.clone()],
                vec![system("s"), question.clone()],
                vec![system("t\n\ns"), one.clone(), two.clone(), question.clone()],
            ),
        ] {
            assert_eq!(with_context(&context, &conversation), expected);
        }
    }
}
