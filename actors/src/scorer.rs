//! Judges each episode as soon as it has ended, while its siblings are still being sampled.
//!
//! Every member leaves exactly once, with a reward or with the cause of its absence; a failure never becomes a
//! number. How many rewards are computed at a time is the capacity of the stage's lane. An episode whose reward failed
//! for good, and not by the run's own limits, is told to the outside, so that somebody can look at it.

use crate::kit::{Board, Outlet, Parcel};
use crate::line::Event;
use crate::parcels::{Drift, Judged, Played, Poison, RolloutFailure, Scored};
use crate::play::Player;
use crate::policy::{Interviewer, Policy};
use crate::queries::Queries;
use actix::prelude::{Actor, Context, Handler};
use async_trait::async_trait;
use futures::future::{try_join, try_join_all};
use minds_core::backend::SamplingBackend;
use minds_core::datum::Datum;
use minds_core::environment::{Oracle, Shift};
use minds_core::episode::Episode;
use minds_core::ids::Token;
use minds_core::reward::Missing;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::Instrument as _;

const NAME: &str = "scorer";

/// Whose log-probs count in rewards.
#[derive(Clone)]
pub enum Judge {
    /// The version that played the group.
    Sampled,
    /// The newest version when the reward is computed. A group's members may then be judged by different versions.
    Latest,
    /// Weights that the run does not change.
    Fixed(Arc<dyn SamplingBackend>),
}

/// Judges with the memory of what they were asked.
#[derive(Clone)]
pub(crate) enum Bench {
    Sampled,
    Latest,
    Fixed(Arc<Interviewer>),
}

impl Bench {
    pub(crate) fn new(judge: Judge, queries: &Arc<Queries>) -> Self {
        match judge {
            Judge::Sampled => Self::Sampled,
            Judge::Latest => Self::Latest,
            Judge::Fixed(sampler) => Self::Fixed(Arc::new(Interviewer::new(sampler, queries.clone(), None))),
        }
    }

    pub(crate) fn panel<'a>(&'a self, played: &'a Policy, latest: &'a Policy) -> Panel<'a> {
        let (log_probs, steps) = match self {
            Self::Sampled => (&played.oracle, &played.oracle),
            Self::Latest => (&latest.oracle, &latest.oracle),
            Self::Fixed(fixed) => (&**fixed, &played.oracle),
        };
        Panel { log_probs, steps }
    }
}

/// Who answers one reward. A gradient step is always one of the policy, also where somebody else's log-probs count.
pub(crate) struct Panel<'a> {
    log_probs: &'a Interviewer,
    steps: &'a Interviewer,
}

#[async_trait]
impl Oracle for Panel<'_> {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, Missing> {
        self.log_probs.logprobs(prefix, target).await
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, Missing> {
        self.log_probs.next_tokens(prefix, k).await
    }

    async fn shift(&self, text: Datum, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Shift, Missing> {
        self.steps.shift(text, prefix, target).await
    }
}

/// The third stage. Cheap to clone: each episode is judged by a task of its own.
#[derive(Clone)]
pub struct Scorer {
    /// Whose log-probs count.
    pub(crate) bench: Bench,
    /// Answers how likely the weights that the policy is not to leave find what it said, if there are any.
    pub(crate) reference: Option<Arc<Interviewer>>,
    /// The weights as they are now.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Judges the episodes.
    pub player: Player,
    /// Where the stage tells how it is.
    pub board: Board,
    /// To the batcher.
    pub scored: Outlet<Judged>,
    /// To the outside.
    pub events: mpsc::Sender<Event>,
}

impl Actor for Scorer {
    type Context = Context<Self>;
}

impl Handler<Parcel<Played>> for Scorer {
    type Result = ();

    fn handle(&mut self, parcel: Parcel<Played>, _: &mut Self::Context) {
        let (played, slot) = parcel.open();
        let (stage, span) = (self.clone(), played.group.span.clone());
        let judging = async move {
            tokio::select! {
                () = stage.judge(played) => {}
                () = stage.scored.closed() => {} // nobody will take the reward
            }
            drop(slot);
        };
        tokio::spawn(judging.instrument(span));
    }
}

impl Scorer {
    async fn judge(&self, played: Played) {
        let begun = Instant::now();
        self.board.update(NAME, |s| s.busy += 1);
        let (meters, environment) = (&self.player.meters, &played.group.component.name);
        let outcome = match &played.outcome {
            Ok(episode) => match self.score(&played, episode).await {
                Ok(scored) => {
                    played.group.credit.paid(episode.sampled_tokens());
                    meters.scored(environment, scored.score.reward.get().into(), begun.elapsed());
                    Ok(scored)
                }
                Err(missing) => {
                    meters.missing(environment, &missing, episode.sampled_tokens());
                    Err((RolloutFailure::from(&missing), Some(missing)))
                }
            },
            Err(why) => {
                // What it had sampled by then went with the environment.
                let missing = played.judged.as_ref().and_then(|judged| judged.as_ref().err());
                missing.iter().for_each(|missing| meters.missing(environment, missing, 0));
                Err((why.clone(), missing.cloned()))
            }
        };
        if let Err((_, Some(Missing::Environment(_) | Missing::NotFinite(_)))) = &outcome {
            played.group.credit.raised(played.group.component.group_size.get());
        }
        let poison =
            outcome.as_ref().err().and_then(|(_, missing)| missing.clone()).filter(Missing::is_poison);
        let poison = poison.map(|missing| Poison::new(&played, missing));
        let outcome = outcome.map_err(|(why, _)| why);
        self.board.update(NAME, |s| {
            s.busy -= 1;
            if outcome.is_ok() { s.done += 1 } else { s.failed += 1 }
        });
        let Played { group, member, .. } = played;
        // A refusal means that the run is over; dropping the last member gives the credit back.
        drop(self.scored.send(Judged { group, member, outcome }).await);
        if let Some(poison) = poison {
            // The outside may have gone; then nobody looks at it.
            drop(self.events.send(Event::Poisoned(poison)).await);
        }
    }

    async fn score(&self, played: &Played, episode: &Episode) -> Result<Scored, Missing> {
        let latest = self.policy.borrow().clone();
        let panel = self.bench.panel(&played.policy, &latest);
        let judging = async {
            match &played.judged {
                Some(judged) => judged.clone(),
                None => self.player.judge(&played.group.component, &played.group.item, episode, &panel).await,
            }
        };
        let (score, drift) = try_join(judging, self.drift(episode)).await?;
        Ok(Scored { episode: episode.clone(), score, drift })
    }

    async fn drift(&self, episode: &Episode) -> Result<Drift, Missing> {
        let Some(reference) = &self.reference else { return Ok(Drift::new()) };
        try_join_all(episode.turns.iter().map(|turn| async move {
            let ask = || reference.logprobs(turn.prompt.clone(), turn.answer.tokens[..].into());
            let logprobs = self.player.retry.run("reference", ask).await?;
            Ok(turn.answer.logprobs.iter().zip(logprobs.iter()).map(|(now, then)| now - then).collect())
        }))
        .await
    }
}
