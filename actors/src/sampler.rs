//! Plays groups: one request for the first answer of all members, then each member on its own.
//!
//! Every member leaves exactly once, as an episode or as the cause of its failure. The policy version is stamped
//! when the group's first request is sent. A sample that cannot be trained costs only its own
//! member, and that member may be played once more. A group's slot is kept until its last member has left. An
//! environment that plays by itself is given one seat per member instead, and each member leaves when its seat is left.
//! Where it compares its members, all of them are played once more if one failed, and they leave together.

use crate::kit::{Board, Outlet, Parcel, unpanicked};
use crate::parcels::{Group, Played, RolloutFailure};
use crate::play::{Player, Table};
use crate::policy::Policy;
use crate::seats::{Outcome, left};
use actix::prelude::{Actor, Context, Handler};
use futures::future::{join, join_all};
use minds_core::environment::{Conductor, Performance, Seat};
use minds_core::episode::Episode;
use minds_core::ids::EpisodeId;
use minds_core::reward::{Missing, Score};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument as _, warn};

const NAME: &str = "sampler";

/// The second stage. Cheap to clone: each group is played by a task of its own.
#[derive(Clone)]
pub struct Sampler {
    /// The newest weights.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Plays the episodes.
    pub player: Player,
    /// How often a member that failed is played once more.
    pub replays: u32,
    /// Where the stage tells how it is.
    pub board: Board,
    /// To the scorer.
    pub episodes: Outlet<Played>,
}

impl Actor for Sampler {
    type Context = Context<Self>;
}

impl Handler<Parcel<Arc<Group>>> for Sampler {
    type Result = ();

    fn handle(&mut self, parcel: Parcel<Arc<Group>>, _: &mut Self::Context) {
        let (group, slot) = parcel.open();
        let (stage, span) = (self.clone(), group.span.clone());
        let playing = async move {
            tokio::select! {
                () = stage.play(group) => {}
                () = stage.episodes.closed() => {} // nobody will take the episodes
            }
            drop(slot);
        };
        tokio::spawn(playing.instrument(span));
    }
}

impl Sampler {
    async fn play(&self, group: Arc<Group>) {
        let begun = Instant::now();
        self.board.update(NAME, |s| s.busy += 1);
        // The version is stamped here, before the first await.
        let policy = self.policy.borrow().clone();
        group.credit.playing(policy.version);
        match group.component.environment.conductor() {
            None => self.take_turns(&group, &policy, begun).await,
            Some(conductor) => self.hand_over(conductor, &group, &policy, begun).await,
        }
        self.board.update(NAME, |s| s.busy -= 1);
    }

    /// Gives an environment that plays by itself a seat per member.
    async fn hand_over(
        &self,
        conductor: &dyn Conductor,
        group: &Arc<Group>,
        policy: &Arc<Policy>,
        begun: Instant,
    ) {
        if conductor.compares() {
            let results = self.compared(conductor, group, policy).await;
            join_all(
                (0..).zip(results).map(|(member, result)| self.leave(group, member, policy, begun, result)),
            )
            .await;
            return;
        }
        let (seats, outcomes) = self.seats(group, 0, policy);
        let leaving = join_all((0_u32..).zip(outcomes).map(|(member, outcome)| async move {
            let mut result = left(outcome).await;
            for again in 1..=self.replays {
                let Err(why) = &result else { break };
                if why.is_unanswered() {
                    break; // the group comes back when the service does
                }
                warn!(member, %why, again, "plays a member once more");
                let id = EpisodeId { group: group.id, member };
                let playing = self.player.perform(conductor, &group.item, id, again, policy.clone());
                result = unpanicked(playing).await.unwrap_or_else(|why| Err(Missing::Environment(why)));
            }
            self.leave(group, member, policy, begun, result).await;
        }));
        // A panic drops the seats, and so every member still leaves.
        drop(join(unpanicked(conductor.play(&group.item, seats)), leaving).await);
    }

    /// Plays a group whose members are compared, and plays it again as long as a member fails and it may be. Of several
    /// times the one with the most rewards counts, whatever they are.
    async fn compared(
        &self,
        conductor: &dyn Conductor,
        group: &Arc<Group>,
        policy: &Arc<Policy>,
    ) -> Vec<Result<Performance, Missing>> {
        let rewards = |results: &[Result<_, _>]| results.iter().filter(|result| result.is_ok()).count();
        let mut best = Vec::new();
        for again in 0..=self.replays {
            let (seats, outcomes) = self.seats(group, again, policy);
            let playing = unpanicked(conductor.play(&group.item, seats));
            let (_, results) = join(playing, join_all(outcomes.into_iter().map(left))).await;
            if again == 0 || rewards(&results) > rewards(&best) {
                best = results;
            }
            let Some(why) = best.iter().find_map(|result| result.as_ref().err()) else { break };
            if best.iter().flat_map(|result| result.as_ref().err()).any(Missing::is_unanswered) {
                break; // the group comes back when the service does
            }
            if again < self.replays {
                warn!(%why, again = again + 1, "plays a group once more: its members are compared");
            }
        }
        best
    }

    /// A seat for every member.
    fn seats(&self, group: &Group, again: u32, policy: &Arc<Policy>) -> (Vec<Seat>, Vec<Outcome>) {
        let members = 0..group.component.group_size.get();
        members
            .map(|member| self.player.seat(EpisodeId { group: group.id, member }, again, policy.clone()))
            .unzip()
    }

    /// A member leaves its seat.
    async fn leave(
        &self,
        group: &Arc<Group>,
        member: u32,
        policy: &Arc<Policy>,
        begun: Instant,
        result: Result<Performance, Missing>,
    ) {
        let (outcome, judged) = match result {
            Ok(Performance { turns, opening, score }) => {
                let id = EpisodeId { group: group.id, member };
                (Ok(Episode { id, item: group.key, policy: policy.version, turns, opening }), Ok(score))
            }
            Err(missing) => (Err(RolloutFailure::from(&missing)), Err(missing)),
        };
        self.tell(group, member, policy, begun, outcome, Some(judged)).await;
    }

    async fn take_turns(&self, group: &Arc<Group>, policy: &Arc<Policy>, begun: Instant) {
        let size = group.component.group_size.get();
        let opening = self.player.open(table(group, policy), size);
        let (prompt, firsts) = match flat(unpanicked(opening).await) {
            Ok(opened) => opened,
            Err(why) => (Arc::default(), vec![Err(why); size as usize]),
        };
        join_all((0_u32..).zip(firsts).map(|(member, first)| {
            let prompt = prompt.clone();
            async move {
                let table = table(group, policy);
                let mut outcome = match first {
                    Ok(first) => {
                        let playing = self.player.finish(table, member, prompt, first);
                        flat(unpanicked(playing).await)
                    }
                    Err(why) => Err(why),
                };
                for again in 1..=self.replays {
                    let Err(why) = &outcome else { break };
                    if why.unanswered {
                        break; // the group comes back when the service does
                    }
                    warn!(member, %why, again, "plays a member once more");
                    let playing = self.player.replay(table, member, again);
                    outcome = flat(unpanicked(playing).await);
                }
                self.tell(group, member, policy, begun, outcome, None).await;
            }
        }))
        .await;
    }

    /// Counts a member and sends it on.
    async fn tell(
        &self,
        group: &Arc<Group>,
        member: u32,
        policy: &Arc<Policy>,
        begun: Instant,
        outcome: Result<Episode, RolloutFailure>,
        judged: Option<Result<Score, Missing>>,
    ) {
        self.player.meters.rollout(&group.component.name, &outcome, begun.elapsed());
        self.board.update(NAME, |s| if outcome.is_ok() { s.done += 1 } else { s.failed += 1 });
        let (group, policy) = (group.clone(), policy.clone());
        // A refusal means that the run is over; dropping the last member gives the credit back.
        drop(self.episodes.send(Played { group, member, policy, outcome, judged }).await);
    }
}

/// A panic is a failure like any other.
fn flat<T>(result: Result<Result<T, RolloutFailure>, String>) -> Result<T, RolloutFailure> {
    result.map_err(RolloutFailure::from).and_then(|result| result)
}

fn table<'a>(group: &'a Group, policy: &'a Policy) -> Table<'a> {
    Table { component: &group.component, item: &group.item, key: group.key, group: group.id, policy }
}
