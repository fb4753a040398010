//! Closes steps in order: publishes their weights, gives credits back, keeps checkpoints.

use super::{Links, Options, Saved};
use crate::ledger::Verdict;
use crate::line::Event;
use crate::parcels::{Batch, ReadyGroup, StepDone};
use crate::policy::Policy;
use minds_core::backend::{BackendError, Export, Pending};
use minds_core::ids::PolicyVersion;
use minds_core::reward::Metrics;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// What the trainer leaves to be closed.
pub(super) enum Finished {
    /// A step whose results are in.
    Step {
        step: u64,
        metrics: Metrics,
        groups: Vec<ReadyGroup>,
        export: Pending<Export>,
        /// Name and answer of a save that was submitted after the step.
        state: Option<(String, Pending<String>)>,
    },
    /// The run is over: save what there is. Parked batches keep their credits until then.
    End { step: u64, parked: Vec<Batch> },
    /// The run cannot go on.
    Failed(String),
}

pub(super) struct Closer {
    pub(super) options: Options,
    pub(super) links: Links,
}

impl Closer {
    pub(super) async fn run(self, mut finished: mpsc::Receiver<Finished>) {
        let mut saved = None;
        while let Some(next) = finished.recv().await {
            let (event, last) = match next {
                Finished::Step { step, metrics, groups, export, state } => {
                    match self.close(step, metrics, groups, export, state, &mut saved).await {
                        Ok(()) => continue,
                        Err(why) => (Event::Failed(why), true),
                    }
                }
                Finished::End { step, parked } => {
                    let event = self.end(step, saved).await;
                    drop(parked);
                    (event, true)
                }
                Finished::Failed(why) => (Event::Failed(why), true),
            };
            // The outside may have gone; then nobody waits for the event.
            drop(self.links.events.send(event).await);
            if last {
                return;
            }
        }
    }

    async fn close(
        &self,
        step: u64,
        mut metrics: Metrics,
        groups: Vec<ReadyGroup>,
        export: Pending<Export>,
        state: Option<(String, Pending<String>)>,
        saved: &mut Option<u64>,
    ) -> Result<(), String> {
        let started = Instant::now();
        let export = export.await.map_err(|e| format!("failed to export the weights of step {step}: {e}"))?;
        metrics.insert("time/export".into(), started.elapsed().as_secs_f64());
        let policy = Policy::new(PolicyVersion(step), export.sampler, self.links.queries.clone());
        self.links.policy.send_replace(Arc::new(policy));
        for group in &groups {
            group.group.credit.settle(&Verdict::Trained);
        }
        let queries = &self.links.queries;
        metrics.insert("scorer/queries_sent".into(), queries.sent.load(Relaxed) as f64);
        metrics.insert("scorer/queries_remembered".into(), queries.remembered.load(Relaxed) as f64);
        self.tell(Event::Step(StepDone { step, metrics, groups })).await?;
        if let Some((name, pending)) = state {
            let state_path =
                pending.await.map_err(|e| format!("failed to save the state of step {step}: {e}"))?;
            *saved = Some(step);
            self.tell(Event::Saved(self.saved(name, step, state_path, export.path))).await?;
        }
        Ok(())
    }

    /// Saves under the step's name, unless that step has just been saved.
    async fn end(&self, step: u64, saved: Option<u64>) -> Event {
        if saved == Some(step) {
            return Event::Ended { step };
        }
        let name = format!("{step:06}{}", if step >= self.options.max_steps { "-final" } else { "-stop" });
        let training = &self.links.training;
        let (state, export) = (training.save_state(&name), training.export_sampler(Some(&name)));
        let both = async { Ok::<_, BackendError>((state.await?, export.await?)) };
        match both.await {
            Ok((state_path, export)) => {
                let saved = self.saved(name, step, state_path, export.path);
                if self.tell(Event::Saved(saved)).await.is_err() {
                    return Event::Failed("nobody follows the run any more".into());
                }
                Event::Ended { step }
            }
            Err(error) => Event::Failed(format!("failed to save the state of step {step}: {error}")),
        }
    }

    fn saved(&self, name: String, step: u64, state_path: String, sampler_path: Option<String>) -> Saved {
        Saved { name, step, state_path, sampler_path, settled: self.links.ledger.settled() }
    }

    async fn tell(&self, event: Event) -> Result<(), String> {
        self.links.events.send(event).await.map_err(|_| "nobody follows the run any more".into())
    }
}
