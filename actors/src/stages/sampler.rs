//! Samples groups: one request for the first completion of all members, then each member on its own.
//!
//! Every member leaves exactly once, as a rollout or as the cause of its failure. The policy version is stamped
//! when the group's first request is sent. A sample that cannot be trained costs only its own
//! member, and that member may be resampled. A group's permit is kept until its last member has left. A self-driven
//! environment receives one session per member instead, and each member leaves when its session finishes.
//! Where it compares its members, all of them are resampled if one failed, and they leave together.

use crate::generate::session::{SessionReceiver, session_result};
use crate::generate::{GenerationTask, RolloutGenerator};
use crate::mailbox::{MailboxSender, StageMessage, catch_panic};
use crate::messages::{Group, RolloutFailure, SampledRollout};
use crate::policy::Policy;
use crate::telemetry::StageBoard;
use actix::prelude::{Actor, Context, Handler};
use futures::future::{join, join_all};
use minds_core::environment::{RolloutSession, SelfDrivenEnvironment, SessionError, SessionRollout};
use minds_core::ids::RolloutId;
use minds_core::reward::{RewardError, Score};
use minds_core::rollout::Rollout;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument as _, warn};

const NAME: &str = "sampler";

/// The second stage. Cheap to clone: each group is sampled by a task of its own.
#[derive(Clone)]
pub struct Sampler {
    /// The newest published weights.
    pub policy: watch::Receiver<Arc<Policy>>,
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
        let stage = self.clone();
        let span = group.span.clone();
        let playing = async move {
            tokio::select! {
                () = stage.generate(group) => {}
                () = stage.rollouts.closed() => {} // nobody will take the rollouts
            }
            drop(permit);
        };
        tokio::spawn(playing.instrument(span));
    }
}

impl Sampler {
    async fn generate(&self, group: Arc<Group>) {
        let begun = Instant::now();
        self.board.update(NAME, |s| s.busy += 1);
        // The version is stamped here, before the first await.
        let policy = self.policy.borrow().clone();
        group.credit.sampling_started(policy.version);
        match group.component.environment.self_driven() {
            None => self.take_turns(&group, &policy, begun).await,
            Some(self_driven) => self.run_self_driven(self_driven, &group, &policy, begun).await,
        }
        self.board.update(NAME, |s| s.busy -= 1);
    }

    /// Gives a self-driven environment a session per member.
    async fn run_self_driven(
        &self,
        self_driven: &dyn SelfDrivenEnvironment,
        group: &Arc<Group>,
        policy: &Arc<Policy>,
        begun: Instant,
    ) {
        if self_driven.compares_rollouts() {
            let results = self.run_compared(self_driven, group, policy).await;
            join_all(
                (0..)
                    .zip(results)
                    .map(|(member, result)| self.finish_session(group, member, policy, begun, result)),
            )
            .await;
            return;
        }
        let (sessions, outcomes) = self.sessions(group, 0, policy);
        let leaving = join_all((0_u32..).zip(outcomes).map(|(member, outcome)| async move {
            let mut result = session_result(outcome).await;
            for again in 1..=self.resamples {
                let Err(why) = &result else { break };
                if why.cause.is_unanswered() {
                    break; // the group comes back when the service does
                }
                warn!(member, %why, again, "samples a member again");
                let id = RolloutId { group: group.id, member };
                let playing = self.generator.run_session(self_driven, &group.item, id, again, policy.clone());
                result = catch_panic(playing)
                    .await
                    .unwrap_or_else(|why| Err(RewardError::Environment(why).into()));
            }
            self.finish_session(group, member, policy, begun, result).await;
        }));
        // A panic drops the sessions, and so every member still leaves.
        drop(join(catch_panic(self_driven.run_rollouts(&group.item, sessions)), leaving).await);
    }

    /// Samples a group whose members are compared, and resamples it while a member fails and attempts remain. The
    /// attempt with the most rewards counts, whatever their values.
    async fn run_compared(
        &self,
        self_driven: &dyn SelfDrivenEnvironment,
        group: &Arc<Group>,
        policy: &Arc<Policy>,
    ) -> Vec<Result<SessionRollout, SessionError>> {
        let rewards = |results: &[Result<_, _>]| results.iter().filter(|result| result.is_ok()).count();
        let mut best = Vec::new();
        for again in 0..=self.resamples {
            let (sessions, outcomes) = self.sessions(group, again, policy);
            let playing = catch_panic(self_driven.run_rollouts(&group.item, sessions));
            let (_, results) = join(playing, join_all(outcomes.into_iter().map(session_result))).await;
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
        best
    }

    /// One session per member.
    fn sessions(
        &self,
        group: &Group,
        again: u32,
        policy: &Arc<Policy>,
    ) -> (Vec<RolloutSession>, Vec<SessionReceiver>) {
        let members = 0..group.component.group_size.get();
        members
            .map(|member| {
                self.generator.session(RolloutId { group: group.id, member }, again, policy.clone())
            })
            .unzip()
    }

    /// Waits for a member's session and sends its result.
    async fn finish_session(
        &self,
        group: &Arc<Group>,
        member: u32,
        policy: &Arc<Policy>,
        begun: Instant,
        result: Result<SessionRollout, SessionError>,
    ) {
        let (outcome, score) = match result {
            Ok(SessionRollout { turns, opening, score }) => {
                let id = RolloutId { group: group.id, member };
                let rollout = Rollout { id, item: group.key, policy: policy.version, turns, opening };
                (Ok(rollout), Ok(score))
            }
            Err(failed) => (Err(RolloutFailure::from(&failed.cause)), Err(failed)),
        };
        self.send(group, member, policy, begun, outcome, Some(score)).await;
    }

    async fn take_turns(&self, group: &Arc<Group>, policy: &Arc<Policy>, begun: Instant) {
        let size = group.component.group_size.get();
        let opening = self.generator.open(task(group, policy), size);
        let (prompt, firsts) = match flat(catch_panic(opening).await) {
            Ok(opened) => opened,
            Err(why) => (Arc::default(), vec![Err(why); size as usize]),
        };
        join_all((0_u32..).zip(firsts).map(|(member, first)| {
            let prompt = prompt.clone();
            async move {
                let task = task(group, policy);
                let mut outcome = match first {
                    Ok(first) => {
                        let playing = self.generator.finish(task, member, prompt, first);
                        flat(catch_panic(playing).await)
                    }
                    Err(why) => Err(why),
                };
                for again in 1..=self.resamples {
                    let Err(why) = &outcome else { break };
                    if why.unanswered {
                        break; // the group comes back when the service does
                    }
                    warn!(member, %why, again, "samples a member again");
                    let playing = self.generator.resample(task, member, again);
                    outcome = flat(catch_panic(playing).await);
                }
                self.send(group, member, policy, begun, outcome, None).await;
            }
        }))
        .await;
    }

    /// Records a member's result and sends it to the scorer.
    async fn send(
        &self,
        group: &Arc<Group>,
        member: u32,
        policy: &Arc<Policy>,
        begun: Instant,
        outcome: Result<Rollout, RolloutFailure>,
        score: Option<Result<Score, SessionError>>,
    ) {
        self.generator.meters.rollout(&group.component.name, &outcome, begun.elapsed());
        self.board.update(NAME, |s| if outcome.is_ok() { s.done += 1 } else { s.failed += 1 });
        let group = group.clone();
        let policy = policy.clone();
        // A refusal means that the run is over; dropping the last member returns the credit.
        drop(self.rollouts.send(SampledRollout { group, member, policy, outcome, score }).await);
    }
}

/// Turns a panic into a failure.
fn flat<T>(result: Result<Result<T, RolloutFailure>, String>) -> Result<T, RolloutFailure> {
    result.map_err(RolloutFailure::from).and_then(|result| result)
}

fn task<'a>(group: &'a Group, policy: &'a Policy) -> GenerationTask<'a> {
    GenerationTask { component: &group.component, item: &group.item, key: group.key, group: group.id, policy }
}
