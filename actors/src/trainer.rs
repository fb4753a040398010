//! Turns batches into optimizer steps and publishes the new weights.
//!
//! `forward_backward`, `optim_step` and the export of a step are submitted back to back; the next batch goes out as
//! soon as the step's result is in, while the export is still being made. A batch that the service refuses leaves
//! the weights untouched, but for what an optimizer step without gradients does, and its groups with the verdict
//! "failed". Credits come back after the new weights are
//! published, so that a group opened with them can play the new weights.

mod closing;
mod report;

use crate::activity::{Activity, Work};
use crate::kit::{Board, Parcel, Slot};
use crate::ledger::{Ledger, Settled, Verdict};
use crate::line::Event;
use crate::parcels::{Batch, Component, ReadyGroup};
use crate::policy::Policy;
use crate::queries::Queries;
use crate::shadow_trainer::Shelf;
use actix::fut::ActorFutureExt;
use actix::prelude::{Actor, AsyncContext, Context, Handler, WrapFuture};
use closing::{Closer, Done, Finished};
use futures::FutureExt;
use minds_core::backend::{BackendError, TrainingBackend};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{error, info};

const NAME: &str = "trainer";

/// What a step is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The loss.
    pub loss: Loss,
    /// The optimizer's settings.
    pub adam: AdamParams,
    /// Steps after which the run has ended.
    pub max_steps: u64,
    /// Steps between two checkpoints; 0 for none but the last.
    pub save_every: u64,
    /// Batches refused in a row after which the run ends with an error.
    pub max_refused: u32,
}

/// A state that a run can go on from.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// Name on the service.
    pub name: String,
    /// Steps done.
    pub step: u64,
    /// Weights and optimizer.
    pub state_path: String,
    /// Weights to sample from.
    pub sampler_path: Option<String>,
    /// Which positions of the schedule these weights have behind them.
    pub settled: Settled,
    /// What environments have learnt, by their name in metrics.
    pub memories: BTreeMap<String, serde_json::Value>,
}

/// Line → Trainer: save and end; the cause, if it is not as asked.
pub struct Finish(pub Option<String>);

/// What the trainer stands on.
#[derive(Clone)]
pub struct Links {
    /// The adapter in training.
    pub training: Arc<dyn TrainingBackend>,
    /// Where new weights are published.
    pub policy: watch::Sender<Arc<Policy>>,
    /// The rewards' questions.
    pub queries: Arc<Queries>,
    /// Where every version is kept for shadows, if they start from the policy.
    pub shelf: Option<Arc<Shelf>>,
    /// The environments.
    pub components: Arc<[Arc<Component>]>,
    /// The book of groups.
    pub ledger: Ledger,
    /// Who is busy when.
    pub activity: Activity,
    /// Where the stage tells how it is.
    pub board: Board,
    /// To the outside.
    pub events: mpsc::Sender<Event>,
    /// Turns true when the run stops.
    pub stop: watch::Receiver<bool>,
}

/// The fifth stage.
pub struct Trainer {
    options: Options,
    links: Links,
    step: u64,
    refused: u32,
    idle_since: Instant,
    closing: mpsc::Sender<Finished>,
    /// Set when the last word has gone to the closer.
    over: bool,
    /// Batches that came after the stop. They are kept as long as the stage: given up, their groups would count as
    /// failed in the last checkpoint. For the same reason the stage never stops by itself, which would drop what
    /// is in its mailbox.
    parked: Vec<Batch>,
}

impl Trainer {
    /// A trainer whose weights have `step` steps behind them, and the task that closes its steps, to be run beside it.
    pub fn new(
        options: Options,
        links: Links,
        step: u64,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        // Two steps can wait to be closed; then the next one waits too.
        let (closing, finished) = mpsc::channel(2);
        let closer = Closer::new(options.clone(), links.clone(), step).run(finished);
        let (idle_since, parked) = (Instant::now(), Vec::new());
        (Self { options, links, step, refused: 0, idle_since, closing, over: false, parked }, closer)
    }
}

impl Actor for Trainer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if self.step >= self.options.max_steps {
            self.end(None, ctx);
        }
    }
}

impl Handler<Parcel<Batch>> for Trainer {
    type Result = ();

    fn handle(&mut self, parcel: Parcel<Batch>, ctx: &mut Self::Context) {
        let (batch, slot) = parcel.open();
        if self.over || *self.links.stop.borrow() {
            self.parked.push(batch);
            return;
        }
        let work = Step {
            options: self.options.clone(),
            links: self.links.clone(),
            step: self.step,
            refused: self.refused,
            idle: self.idle_since.elapsed(),
            closing: self.closing.clone(),
        };
        self.links.board.update(NAME, |s| s.busy = 1);
        ctx.wait(work.run(batch, slot).into_actor(self).map(|outcome, stage, ctx| {
            stage.links.board.update(NAME, |s| s.busy = 0);
            stage.idle_since = Instant::now();
            stage.record(outcome, ctx);
        }));
    }
}

impl Handler<Parcel<Finish>> for Trainer {
    type Result = ();

    fn handle(&mut self, parcel: Parcel<Finish>, ctx: &mut Self::Context) {
        let (Finish(why), _slot) = parcel.open();
        self.end(why, ctx);
    }
}

impl Trainer {
    fn record(&mut self, outcome: Outcome, ctx: &mut Context<Self>) {
        match outcome {
            Outcome::Stepped => {
                self.step += 1;
                self.refused = 0;
                self.links.board.update(NAME, |s| s.done += 1);
                if self.step >= self.options.max_steps {
                    self.end(None, ctx);
                }
            }
            Outcome::Refused(why) => {
                self.refused += 1;
                self.links.board.update(NAME, |s| s.failed += 1);
                error!(step = self.step, %why, refused_in_a_row = self.refused, "batch refused");
                if self.refused >= self.options.max_refused {
                    self.end(Some(format!("{} batches in a row were refused: {why}", self.refused)), ctx);
                }
            }
            Outcome::Fatal(why) => self.tell(Finished::Failed(why), ctx),
        }
    }

    /// Saves and ends, after all steps before; `why` if it is not as asked.
    fn end(&mut self, why: Option<String>, ctx: &mut Context<Self>) {
        self.tell(Finished::End { step: self.step, why }, ctx);
    }

    /// Says the last word.
    fn tell(&mut self, last: Finished, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let closing = self.closing.clone();
        // The closer is gone only if it panicked, and then the run has ended with its words.
        ctx.wait(async move { drop(closing.send(last).await) }.into_actor(self));
    }
}

enum Outcome {
    Stepped,
    Refused(String),
    Fatal(String),
}

/// One step under way.
struct Step {
    options: Options,
    links: Links,
    step: u64,
    /// Batches refused for this step so far.
    refused: u32,
    idle: std::time::Duration,
    closing: mpsc::Sender<Finished>,
}

impl Step {
    async fn run(self, batch: Batch, slot: Slot) -> Outcome {
        let outcome = self.train(batch).await;
        drop(slot);
        outcome
    }

    async fn train(&self, batch: Batch) -> Outcome {
        let version = minds_core::ids::PolicyVersion(self.step);
        let Some(staleness) =
            batch.groups.iter().map(|g| version.staleness(g.oldest)).collect::<Option<Vec<_>>>()
        else {
            return Outcome::Fatal(format!(
                "a group was played by weights newer than {version}: versions went back"
            ));
        };
        let data: Vec<_> = batch.groups.iter().flat_map(|g| g.data.iter().cloned()).collect();
        let started = Instant::now();
        let training = &self.links.training;
        let save = self.options.save_every > 0 && (self.step + 1).is_multiple_of(self.options.save_every);
        // A service gives each name once, and a batch that was refused has used its own up.
        let name = match self.refused {
            0 => format!("{:06}", self.step + 1),
            n => format!("{:06}-{n}", self.step + 1),
        };

        let (forward, optim, export) = if data.is_empty() {
            // No group has anything to teach: momentum alone would move the weights, so there is no step of Adam.
            info!(step = self.step + 1, "all rewards are equal within their groups, weights stay");
            let export = training.export_sampler(save.then_some(name.as_str()));
            (None, None, export)
        } else {
            let busy = self.links.activity.enter(Work::Training);
            let forward = training.forward_backward(data.clone(), self.options.loss);
            let optim = training.optim_step(self.options.adam);
            let export = training.export_sampler(save.then_some(name.as_str()));
            let results = match forward.await {
                Ok(forward) => optim.await.map(|optim| (forward, optim)).map_err(|error| (true, error)),
                Err(error) => Err((false, error)),
            };
            drop(busy);
            match results {
                Ok((forward, optim)) => (Some(forward), Some(optim), export),
                Err((accumulated, error)) => return self.refuse(&batch.groups, accumulated, error),
            }
        };
        let state = save.then(|| training.save_state(&name).shared());
        // Shadows start from the checkpoint, where there is one.
        let shadows = self.links.shelf.as_ref().filter(|_| state.is_none());
        let shadow_state = shadows.map(|_| training.save_state(&format!("{name}-shadow")));
        let (train, idle) = (started.elapsed(), self.idle);
        let done = Done {
            step: self.step + 1,
            measured: report::Measured { staleness, data, forward, optim, train, idle },
            groups: batch.groups,
            export,
            state: state.map(|pending| (name, pending)),
            shadow_state,
        };
        match self.closing.send(Finished::Step(Box::new(done))).await {
            Ok(()) => Outcome::Stepped,
            Err(_) => Outcome::Fatal("nobody closes the steps any more".into()),
        }
    }

    /// `accumulated`: whether the batch's gradients were made before the error.
    fn refuse(&self, groups: &[ReadyGroup], accumulated: bool, error: BackendError) -> Outcome {
        for group in groups {
            group.group.credit.settle(&Verdict::Failed(format!("the batch was refused: {error}")));
        }
        match error {
            BackendError::Lost(why) => Outcome::Fatal(format!("the training session is lost: {why}")),
            // Nothing but a step clears gradients: the next batch would be trained together with this one.
            other if accumulated => Outcome::Fatal(format!("the optimizer's step failed: {other}")),
            other => Outcome::Refused(other.to_string()),
        }
    }
}
