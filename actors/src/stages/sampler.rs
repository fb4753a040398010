//! Samples groups: one request for the first completion of all members, then each member on its own.
//!
//! Every member leaves exactly once, as a rollout or as the cause of its failure. The policy version is stamped
//! when the group's first request is sent; with in-flight weights it is the oldest that samples the group, and each member
//! leaves with the newest one too. A sample that cannot be trained costs only its own
//! member, and that member may be resampled. A group's permit is kept until its last member has left. A self-driven
//! environment receives one session per member instead, and each member leaves when its session finishes.
//! Where it compares its members, all of them are resampled if one failed, and they leave together.
//!
//! The actor opens its mailbox and spawns one task per group; the tasks share one [`GroupSampler`].

use crate::generate::session::{SessionReceiver, session_result};
use crate::generate::{GenerationRequest, RolloutGenerator};
use crate::mailbox::{MailboxSender, StageMessage, catch_panic};
use crate::messages::{Group, RolloutError};
use crate::policy::Policy;
use crate::telemetry::StageBoard;
use actix::prelude::{Actor, Context, Handler};
use futures::future::{join, join_all};
use minds_core::environment::{RolloutSession, SelfDrivenEnvironment, SessionError, SessionRollout};
use minds_core::ids::RolloutId;
use minds_core::reward::{RewardError, Score};
use minds_core::rollout::Rollout;
use minds_core::service::SamplerWeights;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument as _, warn};

const NAME: &str = "sampler";

/// Sampler → Scorer: a finished rollout, or the cause of its failure.
pub struct SampledRollout {
    /// The group it belongs to.
    pub group: Arc<Group>,
    /// The weights that sampled the rollout.
    pub policy: Arc<Policy>,
    /// The rollout; without turns if it failed.
    pub rollout: Rollout,
    /// The reward, where the environment drives itself and has computed it already; `None` where it is to be computed.
    pub score: Result<Option<Score>, RolloutError>,
}

/// The second stage: turns groups into sampled rollouts.
pub struct Sampler(pub Arc<GroupSampler>);

/// Samples the rollouts of any number of groups at a time.
pub struct GroupSampler {
    /// The newest published weights.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Whether rollouts follow weights that are published while they are sampled.
    pub weights: SamplerWeights,
    /// Samples the rollouts of a group.
    pub generator: RolloutGenerator,
    /// How often a failed member is resampled.
    pub resamples: u32,
    /// Where the stage publishes its snapshot.
    pub board: StageBoard,
    /// Mailbox of the scorer.
    pub rollouts: MailboxSender<SampledRollout>,
}

impl Actor for Sampler {
    type Context = Context<Self>;
}

impl Handler<StageMessage<Arc<Group>>> for Sampler {
    type Result = ();

    fn handle(&mut self, message: StageMessage<Arc<Group>>, _: &mut Self::Context) {
        let (group, permit) = message.open();
        let sampler = self.0.clone();
        let span = group.span.clone();
        let sampling = async move {
            tokio::select! {
                () = sampler.generate(group) => {}
                () = sampler.rollouts.closed() => {} // nobody will take the rollouts
            }
            drop(permit);
        };
        tokio::spawn(sampling.instrument(span));
    }
}

/// One attempt at a group: what its members share.
#[derive(Clone, Copy)]
struct GroupAttempt<'a> {
    group: &'a Arc<Group>,
    policy: &'a Arc<Policy>,
    begun: Instant,
}

impl GroupAttempt<'_> {
    fn size(&self) -> u32 {
        self.group.component.group_size.get()
    }

    fn id(&self, member: u32) -> RolloutId {
        RolloutId { group: self.group.id, member }
    }

    /// A rollout that has no turns yet.
    fn empty(&self, member: u32) -> Rollout {
        Rollout::new(self.id(member), self.group.key, self.policy.version)
    }

    fn task(&self) -> GenerationRequest<'_> {
        let Group { id, key, component, item, .. } = &**self.group;
        GenerationRequest { component, item, key: *key, group: *id, policy: self.policy }
    }
}

impl GroupSampler {
    async fn generate(&self, group: Arc<Group>) {
        let begun = Instant::now();
        self.board.update(NAME, |s| s.busy += 1);
        // The version is stamped here, before the first await.
        let policy = self.policy.borrow().clone();
        group.credit.sampling_started(policy.version);
        let attempt = GroupAttempt { group: &group, policy: &policy, begun };
        match group.component.environment.self_driven() {
            None => self.take_turns(attempt).await,
            Some(environment) if environment.compares_rollouts() => {
                self.run_compared(environment, attempt).await;
            }
            Some(environment) => self.run_sessions(environment, attempt).await,
        }
        self.board.update(NAME, |s| s.busy -= 1);
    }

    /// Calls the environment turn by turn; the first completions of all members come from one request.
    async fn take_turns(&self, attempt: GroupAttempt<'_>) {
        let size = attempt.size();
        let opening = catch_panic(self.generator.open(attempt.task(), size));
        let (prompt, firsts) = match unpanicked(opening.await) {
            Ok(opened) => opened,
            Err(why) => (Arc::default(), vec![Err(why); size as usize]),
        };
        join_all((0_u32..).zip(firsts).map(|(member, first)| {
            let prompt = prompt.clone();
            async move {
                let mut result = match first {
                    Ok(first) => {
                        let sampling = self.generator.finish(attempt.task(), member, prompt, first);
                        unpanicked(catch_panic(sampling).await)
                    }
                    Err(why) => Err(why),
                };
                for again in 1..=self.resamples {
                    let Err(why) = &result else { break };
                    if why.is_unanswered() {
                        break; // the group comes back when the service does
                    }
                    warn!(member, %why, again, "samples a member again");
                    let sampling = self.generator.resample(attempt.task(), member, again);
                    result = unpanicked(catch_panic(sampling).await);
                }
                let (rollout, score) = match result {
                    Ok(rollout) => (rollout, Ok(None)),
                    Err(why) => (attempt.empty(member), Err(why)),
                };
                self.send(attempt, rollout, score).await;
            }
        }))
        .await;
    }

    /// Gives a self-driven environment a session per member; each member leaves when its session finishes.
    async fn run_sessions(&self, environment: &dyn SelfDrivenEnvironment, attempt: GroupAttempt<'_>) {
        let item = &attempt.group.item;
        let (sessions, outcomes) = self.sessions(attempt, 0);
        let leaving = join_all((0_u32..).zip(outcomes).map(|(member, outcome)| async move {
            let mut result = session_result(outcome).await;
            for again in 1..=self.resamples {
                let Err(why) = &result else { break };
                if why.cause.is_unanswered() {
                    break; // the group comes back when the service does
                }
                warn!(member, %why, again, "samples a member again");
                let id = attempt.id(member);
                let session =
                    self.generator.run_session(environment, item, id, again, attempt.policy.clone());
                result = catch_panic(session)
                    .await
                    .unwrap_or_else(|why| Err(RewardError::Environment(why).into()));
            }
            self.finish_session(attempt, member, result).await;
        }));
        // A panic drops the sessions, and so every member still leaves.
        drop(join(catch_panic(environment.run_rollouts(item, sessions)), leaving).await);
    }

    /// Samples a group whose members are compared, and resamples it while a member fails and attempts remain. The
    /// attempt with the most rewards counts, whatever their values.
    async fn run_compared(&self, environment: &dyn SelfDrivenEnvironment, attempt: GroupAttempt<'_>) {
        let rewards = |results: &[Result<_, _>]| results.iter().filter(|result| result.is_ok()).count();
        let mut best = Vec::new();
        for again in 0..=self.resamples {
            let (sessions, outcomes) = self.sessions(attempt, again);
            let running = catch_panic(environment.run_rollouts(&attempt.group.item, sessions));
            let (_, results) = join(running, join_all(outcomes.into_iter().map(session_result))).await;
            if again == 0 || rewards(&results) > rewards(&best) {
                best = results;
            }
            let Some(why) = best.iter().find_map(|result| result.as_ref().err()) else { break };
            if best.iter().flat_map(|result| result.as_ref().err()).any(|why| why.cause.is_unanswered()) {
                break; // the group comes back when the service does
            }
            if again < self.resamples {
                warn!(%why, again = again + 1, "samples a group again: its members are compared");
            }
        }
        let members = (0..).zip(best);
        join_all(members.map(|(member, result)| self.finish_session(attempt, member, result))).await;
    }

    /// One session per member.
    fn sessions(&self, attempt: GroupAttempt<'_>, again: u32) -> (Vec<RolloutSession>, Vec<SessionReceiver>) {
        let session = |member| self.generator.session(attempt.id(member), again, attempt.policy.clone());
        (0..attempt.size()).map(session).unzip()
    }

    /// Sends the result of a member's session.
    async fn finish_session(
        &self,
        attempt: GroupAttempt<'_>,
        member: u32,
        result: Result<SessionRollout, SessionError>,
    ) {
        let (rollout, score) = match result {
            Ok(SessionRollout { turns, opening, score }) => {
                (Rollout { turns, opening, ..attempt.empty(member) }, Ok(Some(score)))
            }
            Err(SessionError { cause, turns }) => {
                (Rollout { turns, ..attempt.empty(member) }, Err(RolloutError::Reward(cause)))
            }
        };
        self.send(attempt, rollout, score).await;
    }

    /// Records a member's result and sends it to the scorer.
    async fn send(
        &self,
        attempt: GroupAttempt<'_>,
        mut rollout: Rollout,
        score: Result<Option<Score>, RolloutError>,
    ) {
        if self.weights == SamplerWeights::InFlight {
            rollout.followed_weights(self.policy.borrow().version);
        }
        let group = attempt.group.clone();
        let policy = attempt.policy.clone();
        let sampled = score.is_ok();
        let took = attempt.begun.elapsed();
        self.generator.meters.rollout(&group.component.name, sampled.then_some(&rollout), took);
        self.board.update(NAME, |s| if sampled { s.done += 1 } else { s.failed += 1 });
        // A refusal means that the run is over; dropping the last member returns the credit.
        drop(self.rollouts.send(SampledRollout { group, policy, rollout, score }).await);
    }
}

/// Turns a panic into an error.
fn unpanicked<T>(result: Result<Result<T, RolloutError>, String>) -> Result<T, RolloutError> {
    result.unwrap_or_else(|why| Err(RolloutError::Panicked(why)))
}
