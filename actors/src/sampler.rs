//! Plays groups: one request for the first answer of all members, then each member on its own.
//!
//! Every member leaves exactly once, as an episode or as the cause of its failure. The policy version is stamped
//! when the group's first request is sent. A sample that cannot be trained costs only its own
//! member, and that member may be played once more. A group's slot is kept until its last member has left. An
//! environment that plays by itself is given one seat per member instead, and each member leaves when its seat is left.

use crate::kit::{Board, Outlet, Parcel, unpanicked};
use crate::parcels::{Group, Played};
use crate::play::{Player, Table};
use crate::policy::Policy;
use crate::seats::left;
use actix::prelude::{Actor, Context, Handler};
use futures::future::{join, join_all};
use minds_core::environment::Conductor;
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
        let members = 0..group.component.group_size.get();
        let (seats, outcomes): (Vec<_>, Vec<_>) =
            members.map(|member| self.player.seat(group.id, member, policy.clone())).unzip();
        let leaving = join_all((0_u32..).zip(outcomes).map(|(member, outcome)| async move {
            let (outcome, judged) = match left(outcome).await {
                Ok(performance) => {
                    let episode = Episode {
                        id: EpisodeId { group: group.id, member },
                        item: group.key,
                        policy: policy.version,
                        turns: performance.turns,
                        opening: performance.opening,
                    };
                    (Ok(episode), Ok(performance.score))
                }
                Err(missing) => (Err(missing.to_string()), Err(missing)),
            };
            self.tell(group, member, policy, begun, outcome, Some(judged)).await;
        }));
        // A panic drops the seats, and so every member still leaves.
        drop(join(unpanicked(conductor.play(&group.item, seats)), leaving).await);
    }

    async fn take_turns(&self, group: &Arc<Group>, policy: &Arc<Policy>, begun: Instant) {
        let size = group.component.group_size.get();
        let opening = self.player.open(table(group, policy), size);
        let (prompt, firsts) = match unpanicked(opening).await.and_then(|opened| opened) {
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
                        unpanicked(playing).await.and_then(|episode| episode)
                    }
                    Err(why) => Err(why),
                };
                for again in 1..=self.replays {
                    let Err(why) = &outcome else { break };
                    warn!(member, why, again, "plays a member once more");
                    let playing = self.player.replay(table, member, again);
                    outcome = unpanicked(playing).await.and_then(|episode| episode);
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
        outcome: Result<Episode, String>,
        judged: Option<Result<Score, Missing>>,
    ) {
        self.player.meters.rollout(&group.component.name, &outcome, begun.elapsed());
        self.board.update(NAME, |s| if outcome.is_ok() { s.done += 1 } else { s.failed += 1 });
        let (group, policy) = (group.clone(), policy.clone());
        // A refusal means that the run is over; dropping the last member gives the credit back.
        drop(self.episodes.send(Played { group, member, policy, outcome, judged }).await);
    }
}

fn table<'a>(group: &'a Group, policy: &'a Policy) -> Table<'a> {
    Table { component: &group.component, item: &group.item, key: group.key, group: group.id, policy }
}
