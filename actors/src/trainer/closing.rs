//! Closes steps in order: publishes their weights, gives credits back, keeps checkpoints.

use super::gathered::Gathered;
use super::{Links, Options, Saved, report};
use crate::activity::Work;
use crate::ledger::{Counts, Settled, Verdict};
use crate::line::Event;
use crate::names;
use crate::parcels::{Component, Spare, StepDone};
use crate::policy::Policy;
use crate::queries::Reading;
use crate::shadow_trainer::{Origin, State};
use minds_core::backend::{BackendError, Export, Pending, SamplingBackend};
use minds_core::ids::{PolicyVersion, Token};
use minds_core::optim::AdamParams;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::debug;

/// A step whose results are in.
pub(super) struct Done {
    pub(super) step: u64,
    /// The optimizer's settings.
    pub(super) adam: AdamParams,
    /// Gradient norms of the optimizer steps until this one.
    pub(super) gradient_norms: Vec<f64>,
    pub(super) gathered: Gathered,
    /// The weights, if they are to be published.
    pub(super) export: Option<Pending<Export>>,
    /// Name and answer of a save that was submitted after the step.
    pub(super) state: Option<(String, State)>,
    /// Answer of a save that only shadows need.
    pub(super) shadow_state: Option<Pending<String>>,
}

/// What the newest weights have behind them.
struct Behind {
    settled: Settled,
    spares: Vec<Spare>,
    counts: Counts,
    memories: BTreeMap<String, serde_json::Value>,
    gradient_norms: Vec<f64>,
}

impl Behind {
    fn saved(self, name: String, step: u64, state_path: String, sampler_path: Option<String>) -> Saved {
        let Self { settled, spares, counts, memories, gradient_norms } = self;
        Saved { name, step, state_path, sampler_path, settled, spares, counts, memories, gradient_norms }
    }
}

/// What the trainer leaves to be closed.
pub(super) enum Finished {
    /// A step to be closed.
    Step(Box<Done>),
    /// The run is over: save what there is. `why` if it is not as asked.
    End { step: u64, gradient_norms: Vec<f64>, why: Option<String> },
    /// The run cannot go on.
    Failed(String),
}

pub(super) struct Closer {
    options: Options,
    links: Links,
    /// The step at which the run began.
    first: u64,
    /// The latest step that was saved.
    saved: Option<u64>,
    /// How often rewards had asked at the step before.
    reading: Reading,
}

impl Closer {
    pub(super) fn new(options: Options, links: Links, first: u64) -> Self {
        // Nothing is left to do for a run that went on from its last step, and that step is saved.
        let saved = (first >= options.max_steps).then_some(first);
        Self { options, links, first, saved, reading: Reading::default() }
    }

    pub(super) async fn run(mut self, mut finished: mpsc::Receiver<Finished>) {
        while let Some(next) = finished.recv().await {
            let last = match next {
                Finished::Step(done) => match self.close(*done).await {
                    Ok(()) => continue,
                    Err(why) => Event::Failed(why),
                },
                Finished::End { step, gradient_norms, why } => self.end(step, gradient_norms, why).await,
                Finished::Failed(why) => Event::Failed(why),
            };
            // The outside may have gone; then nobody waits for the event.
            drop(self.links.events.send(last).await);
            return;
        }
    }

    async fn close(&mut self, done: Done) -> Result<(), String> {
        let Done { step, adam, gradient_norms, mut gathered, export, state, shadow_state } = done;
        let forward = gathered.take_forward();
        let mut metrics = report::metrics(&self.options, step, &adam, &gathered, forward.as_ref());
        let groups = gathered.groups;
        self.links.meters.step(&metrics, &groups, gathered.train);
        let (queries, shelf) = (self.links.queries.clone(), self.links.shelf.as_ref());
        let mut sampler_path = None;
        if let Some(export) = export {
            let started = Instant::now();
            let busy = self.links.activity.enter(Work::Exporting);
            let export =
                export.await.map_err(|e| format!("failed to export the weights of step {step}: {e}"))?;
            drop(busy);
            let took = started.elapsed();
            self.links.meters.exported(took);
            metrics.insert(names::TIME_EXPORT.into(), took.as_secs_f64());
            let sampler = export.sampler;
            let origin = shelf.and_then(|shelf| match (&state, shadow_state) {
                (Some((_, state)), _) => Some(Origin::new(state.clone(), sampler.clone())),
                (None, Some(pending)) => Some(shelf.keep(pending, sampler.clone())),
                (None, None) => None,
            });
            self.publish(step, sampler, origin);
            sampler_path = export.path;
        }
        queries.next_step();
        for group in &groups {
            group.group.span.in_scope(|| debug!(step, "trained"));
            group.group.credit.settle(if group.filtered { &Verdict::Filtered } else { &Verdict::Trained });
        }
        let reading = queries.read();
        queries.report(&reading, &std::mem::replace(&mut self.reading, reading), &mut metrics);
        self.tell(Event::Step(StepDone { step, metrics, groups })).await?;
        if let Some((name, pending)) = state {
            let behind = self.behind(gradient_norms);
            let state_path =
                pending.await.map_err(|e| format!("failed to save the state of step {step}: {e}"))?;
            self.saved = Some(step);
            self.tell(Event::Saved(behind.saved(name, step, state_path, sampler_path))).await?;
        }
        if let Some(shelf) = self.links.shelf.clone() {
            // Beside the line: a slow deletion must not hold the next weights back.
            tokio::spawn(async move { shelf.sweep().await });
        }
        Ok(())
    }

    fn behind(&self, gradient_norms: Vec<f64>) -> Behind {
        let learnt = |c: &Arc<Component>| Some((c.name.clone(), c.environment.memory()?));
        let memories = self.links.components.iter().filter_map(learnt).collect();
        let ledger = &self.links.ledger;
        let (settled, spares, counts) = (ledger.settled(), ledger.spares(), ledger.counts());
        Behind { settled, spares, counts, memories, gradient_norms }
    }

    /// Saves under the step's name, unless that step has just been saved or nothing was done. A run that failed saves
    /// only weights that work: it is to go on from them.
    async fn end(&self, step: u64, gradient_norms: Vec<f64>, why: Option<String>) -> Event {
        let nothing_done = why.is_some() && step == self.first;
        let saving = if self.saved == Some(step) || nothing_done {
            Ok(())
        } else if why.is_some() && !self.works().await {
            Err(format!("did not save step {step}, for its weights give no finite log-probs"))
        } else {
            self.save(step, gradient_norms).await
        };
        match (why, saving) {
            (None, Ok(())) => Event::Ended { step },
            (Some(why), Ok(())) => Event::Failed(why),
            (None, Err(error)) => Event::Failed(error),
            (Some(why), Err(error)) => Event::Failed(format!("{why}; then it {error}")),
        }
    }

    /// Whether the weights give finite log-probs. A service that does not answer gets the benefit of the doubt.
    async fn works(&self) -> bool {
        // Every vocabulary has these tokens.
        let probe: Arc<[Token]> = [0, 1].into();
        let probed = async { self.links.training.export_sampler(None).await?.sampler.logprobs(probe).await };
        match probed.await {
            Ok(logprobs) => logprobs.into_iter().flatten().all(f32::is_finite),
            Err(error) => matches!(
                error,
                BackendError::Unavailable(_) | BackendError::TimedOut(_) | BackendError::Away(_)
            ),
        }
    }

    async fn save(&self, step: u64, gradient_norms: Vec<f64>) -> Result<(), String> {
        // What is settled from here on is not part of these weights.
        let behind = self.behind(gradient_norms);
        let name = format!("{step:06}{}", if step >= self.options.max_steps { "-final" } else { "-stop" });
        let training = &self.links.training;
        let (state, export) = (training.save_state(&name), training.export_sampler(Some(&name)));
        let both = async { Ok::<_, BackendError>((state.await?, export.await?)) };
        let (state_path, Export { sampler, path: sampler_path }) =
            both.await.map_err(|e| format!("failed to save the state of step {step}: {e}"))?;
        if self.links.policy.borrow().version.0 < step {
            // With a `publish_every` that does not divide the steps, nobody else has seen the last weights.
            let origin = self.links.shelf.as_ref().map(|_| Origin::kept(state_path.clone(), sampler.clone()));
            self.publish(step, sampler, origin);
        }
        self.tell(Event::Saved(behind.saved(name, step, state_path, sampler_path))).await
    }

    /// From now on these weights play.
    fn publish(&self, step: u64, sampler: Arc<dyn SamplingBackend>, origin: Option<Arc<Origin>>) {
        let policy = Policy::new(PolicyVersion(step), sampler, self.links.queries.clone(), origin);
        self.links.policy.send_replace(Arc::new(policy));
    }

    async fn tell(&self, event: Event) -> Result<(), String> {
        self.links.events.send(event).await.map_err(|_| "lost its follower".into())
    }
}
