//! Judges each episode as soon as it has ended, while its siblings are still being sampled.
//!
//! Every member leaves exactly once, with a reward or with the cause of its absence; a failure never becomes a
//! number. How many rewards are computed at a time is the capacity of the stage's lane.

use crate::kit::{Board, Outlet, Parcel};
use crate::parcels::{Judged, Played};
use crate::play::Player;
use crate::policy::Policy;
use actix::prelude::{Actor, Context, Handler};
use minds_core::environment::Oracle;
use minds_core::episode::Episode;
use minds_core::reward::{Missing, Score};
use std::sync::Arc;
use tokio::sync::watch;

const NAME: &str = "scorer";

/// Whose log-probs count in rewards.
#[derive(Clone)]
pub enum Judge {
    /// The version that played the group.
    Sampled,
    /// The newest version when the reward is computed. A group's members may then be judged by different versions.
    Latest,
    /// Weights that the run does not change.
    Fixed(Arc<dyn Oracle>),
}

/// The third stage. Cheap to clone: each episode is judged by a task of its own.
#[derive(Clone)]
pub struct Scorer {
    /// Whose log-probs count.
    pub judge: Judge,
    /// The weights as they are now.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Judges the episodes.
    pub player: Player,
    /// Where the stage tells how it is.
    pub board: Board,
    /// To the batcher.
    pub scored: Outlet<Judged>,
}

impl Actor for Scorer {
    type Context = Context<Self>;
}

impl Handler<Parcel<Played>> for Scorer {
    type Result = ();

    fn handle(&mut self, parcel: Parcel<Played>, _: &mut Self::Context) {
        let (played, slot) = parcel.open();
        let stage = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stage.judge(played) => {}
                () = stage.scored.closed() => {} // nobody will take the reward
            }
            drop(slot);
        });
    }
}

impl Scorer {
    async fn judge(&self, played: Played) {
        self.board.update(NAME, |s| s.busy += 1);
        let outcome = match &played.outcome {
            Ok(episode) => {
                self.score(&played, episode).await.map(|s| (episode.clone(), s)).map_err(|e| e.to_string())
            }
            Err(why) => Err(why.clone()),
        };
        self.board.update(NAME, |s| {
            s.busy -= 1;
            if outcome.is_ok() { s.done += 1 } else { s.failed += 1 }
        });
        let Played { group, member, .. } = played;
        // A refusal means that the run is over; dropping the last member gives the credit back.
        drop(self.scored.send(Judged { group, member, outcome }).await);
    }

    async fn score(&self, played: &Played, episode: &Episode) -> Result<Score, Missing> {
        let latest = self.policy.borrow().clone();
        let oracle: &dyn Oracle = match &self.judge {
            Judge::Sampled => &played.policy.oracle,
            Judge::Latest => &latest.oracle,
            Judge::Fixed(oracle) => &**oracle,
        };
        self.player.judge(&played.group.component, &played.group.item, episode, oracle).await
    }
}
