//! Turns batches into optimizer steps and publishes the new weights.
//!
//! `forward_backward`, `optim_step` and the export of a step are submitted back to back; the next batch goes out as
//! soon as the step's result is in, while the export is still being made. A batch that the service refuses leaves
//! the weights untouched and its groups with the verdict "failed". Credits come back after the new weights are
//! published, so that a group opened with them can play the new weights.

mod closing;
mod report;

use crate::activity::{Activity, Work};
use crate::kit::{Board, Parcel, Slot};
use crate::ledger::{Ledger, Settled, Verdict};
use crate::line::Event;
use crate::parcels::{Batch, ReadyGroup};
use crate::policy::{Policy, Queries};
use actix::fut::ActorFutureExt;
use actix::prelude::{Actor, ActorContext, AsyncContext, Context, Handler, WrapFuture};
use closing::{Closer, Finished};
use minds_core::backend::{BackendError, TrainingBackend};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
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
}

/// Line → Trainer: save and end.
pub struct Finish;

/// What the trainer stands on.
#[derive(Clone)]
pub struct Links {
    /// The adapter in training.
    pub training: Arc<dyn TrainingBackend>,
    /// Where new weights are published.
    pub policy: watch::Sender<Arc<Policy>>,
    /// Counts the rewards' questions.
    pub queries: Arc<Queries>,
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
    /// Batches that came after the stop: never trained, and not given up before the last checkpoint is made.
    parked: Vec<Batch>,
}

impl Trainer {
    /// A trainer whose weights have `step` steps behind them.
    ///
    /// Must be called on a runtime: it spawns the task that closes steps.
    #[must_use]
    pub fn new(options: Options, links: Links, step: u64) -> Self {
        // Two steps can wait to be closed; then the next one waits too.
        let (closing, finished) = mpsc::channel(2);
        tokio::spawn(Closer { options: options.clone(), links: links.clone() }.run(finished));
        Self { options, links, step, refused: 0, idle_since: Instant::now(), closing, parked: Vec::new() }
    }
}

impl Actor for Trainer {
    type Context = Context<Self>;
}

impl Handler<Parcel<Batch>> for Trainer {
    type Result = ();

    fn handle(&mut self, parcel: Parcel<Batch>, ctx: &mut Self::Context) {
        let (batch, slot) = parcel.open();
        if *self.links.stop.borrow() || self.step >= self.options.max_steps {
            self.parked.push(batch);
            return;
        }
        let work = Step {
            options: self.options.clone(),
            links: self.links.clone(),
            step: self.step,
            idle: self.idle_since.elapsed(),
            closing: self.closing.clone(),
        };
        ctx.wait(work.run(batch, slot).into_actor(self).map(|outcome, stage, ctx| {
            stage.idle_since = Instant::now();
            stage.record(outcome, ctx);
        }));
    }
}

impl Handler<Parcel<Finish>> for Trainer {
    type Result = ();

    fn handle(&mut self, parcel: Parcel<Finish>, ctx: &mut Self::Context) {
        let (Finish, _slot) = parcel.open();
        self.end(ctx);
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
                    self.end(ctx);
                }
            }
            Outcome::Refused(why) => {
                self.refused += 1;
                self.links.board.update(NAME, |s| s.failed += 1);
                error!(step = self.step, %why, refused_in_a_row = self.refused, "batch refused, weights untouched");
                if self.refused >= self.options.max_refused {
                    self.fail(format!("{} batches in a row were refused: {why}", self.refused), ctx);
                }
            }
            Outcome::Fatal(why) => self.fail(why, ctx),
        }
    }

    /// Saves and ends, after all steps before.
    fn end(&mut self, ctx: &mut Context<Self>) {
        let (closing, step) = (self.closing.clone(), self.step);
        let parked = std::mem::take(&mut self.parked);
        let last = async move {
            // The closer is gone only if the outside is, and then nobody waits for the end.
            drop(closing.send(Finished::End { step, parked }).await);
        };
        ctx.wait(last.into_actor(self).map(|(), _, ctx| ctx.stop()));
    }

    fn fail(&mut self, why: String, ctx: &mut Context<Self>) {
        let closing = self.closing.clone();
        let last = async move { drop(closing.send(Finished::Failed(why)).await) };
        ctx.wait(last.into_actor(self).map(|(), _, ctx| ctx.stop()));
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
        let name = format!("{:06}", self.step + 1);

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
            let results = (forward.await, optim.await);
            drop(busy);
            match results {
                (Ok(forward), Ok(optim)) => (Some(forward), Some(optim), export),
                (Err(error), _) | (_, Err(error)) => return self.refuse(&batch.groups, error),
            }
        };
        let state = save.then(|| training.save_state(&name));
        let timing = report::Timing { train: started.elapsed(), idle: self.idle };
        let metrics = report::metrics(
            &self.options,
            self.step + 1,
            &batch.groups,
            &staleness,
            &data,
            forward.as_ref(),
            optim.as_ref(),
            timing,
        );
        let finished = Finished::Step {
            step: self.step + 1,
            metrics,
            groups: batch.groups,
            export,
            state: state.map(|pending| (name, pending)),
        };
        // The closer is gone only if the outside is.
        match self.closing.send(finished).await {
            Ok(()) => Outcome::Stepped,
            Err(_) => Outcome::Fatal("nobody follows the run any more".into()),
        }
    }

    fn refuse(&self, groups: &[ReadyGroup], error: BackendError) -> Outcome {
        for group in groups {
            group.group.credit.settle(&Verdict::Failed(format!("the batch was refused: {error}")));
        }
        match error {
            BackendError::Lost(why) => Outcome::Fatal(format!("the training session is lost: {why}")),
            other => Outcome::Refused(other.to_string()),
        }
    }
}
