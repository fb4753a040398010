//! An adapter in training. It executes its requests one after the other, in the order of the calls.

use crate::options::PassTime;
use crate::request::{AdapterRequest, RequestProgress, ServiceRequest};
use crate::sampler::SimulatedSampler;
use crate::saved::SavedWeights;
use crate::state::{DrawKind, LONGEST, SimulationState, wait};
use crate::weights::{Publications, SimulatedWeights};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use minds_core::checkpoint::{CheckpointAddress, CheckpointNotes, CheckpointPurpose};
use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::PolicyVersion;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::service::{
    BackendError, Export, ForwardOutput, OptimStep, Pending, SamplingBackend, TrainingBackend,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// What an adapter has learnt so far.
#[derive(Clone, Copy)]
struct AdapterProgress {
    /// Number of optimizer steps of the weights.
    version: u64,
    /// Whether gradients have accumulated since the last step.
    gradients: bool,
}

pub struct SimulatedTraining {
    state: Arc<SimulationState>,
    adapter: usize,
    /// The run that its weights are saved under.
    run: String,
    spec: LoraSpec,
    /// Number of requests so far, by name of their kind.
    numbers: Mutex<HashMap<&'static str, usize>>,
    /// What in-flight samplers sample from.
    publications: Arc<Publications>,
    jobs: mpsc::UnboundedSender<Job>,
}

/// A queued request, which changes the weights when it is executed.
type Job = Box<dyn FnOnce(AdapterProgress) -> BoxFuture<'static, AdapterProgress> + Send>;

impl SimulatedTraining {
    /// Creates an adapter whose weights are those after `steps` optimizer steps. They are saved under `run`; without one,
    /// under a run of the adapter's number. Must be called on a tokio runtime.
    pub fn start(state: Arc<SimulationState>, run: Option<&str>, spec: LoraSpec, steps: u64) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel::<Job>();
        tokio::spawn(work(state.clone(), queue, AdapterProgress { version: steps, gradients: false }));
        let adapter = state.count(|counts| {
            counts.adapters += 1;
            counts.live_adapters += 1;
            counts.most_adapters = counts.most_adapters.max(counts.live_adapters);
            counts.adapters - 1
        });
        let run = run.map_or_else(|| format!("simulated-{adapter}"), str::to_owned);
        Self { state, adapter, run, spec, numbers: Mutex::default(), publications: Arc::default(), jobs }
    }

    /// Queues a request behind earlier ones. `execute` receives the number of earlier requests of its kind.
    fn queue<T: Send + 'static>(
        &self,
        request: AdapterRequest,
        execute: impl FnOnce(
            &Arc<SimulationState>,
            usize,
            &mut AdapterProgress,
            &AdapterRequest,
        ) -> Result<T, BackendError>
        + Send
        + 'static,
    ) -> Pending<T> {
        let state = self.state.clone();
        let adapter = self.adapter;
        let reported = ServiceRequest::Adapter(adapter, &request);
        state.arrived(reported);
        let number = {
            let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
            let number = numbers.entry(reported.name()).or_default();
            *number += 1;
            *number - 1
        };
        let (sender, result) = oneshot::channel();
        let job = move |mut weights: AdapterProgress| async move {
            state.until_back().await;
            state.report(ServiceRequest::Adapter(adapter, &request), RequestProgress::Begun);
            let seconds = state.training_time(&request, weights, [number as u64, adapter as u64]);
            wait(Duration::from_secs_f64(seconds)).await;
            state.count(|counts| counts.training_s += seconds);
            state.until_back().await;
            if let AdapterRequest::ForwardBackward(_) = request {
                let mut passes = state.passes.subscribe();
                passes.wait_for(|answered| *answered).await.expect("the state holds the sender");
            }
            let result = execute(&state, number, &mut weights, &request);
            state.report(ServiceRequest::Adapter(adapter, &request), RequestProgress::Answered(seconds));
            // The caller may have dropped the receiver.
            drop(sender.send(result));
            weights
        };
        // The queue lives as long as `self`.
        drop(self.jobs.send(Box::new(move |weights| job(weights).boxed())));
        async move { result.await.unwrap_or_else(|_| Err(BackendError::Lost("gone".into()))) }.boxed()
    }

    /// Publishes weights of this number of optimizer steps without a request.
    pub fn publish_now(&self, version: PolicyVersion, steps: u64) -> SimulatedSampler {
        self.publications.publish(version, steps);
        let weights = SimulatedWeights::InFlight(self.publications.clone());
        SimulatedSampler { state: self.state.clone(), weights }
    }

    /// The address of this adapter's weights with a purpose and a name.
    fn address(&self, purpose: CheckpointPurpose, name: &str) -> Result<String, BackendError> {
        Ok(CheckpointAddress::new(&self.run, purpose, name)?.to_string())
    }

    /// What is saved of weights, beside their optimizer steps.
    fn saved_with(&self, notes: CheckpointNotes) -> impl FnOnce(u64) -> SavedWeights + Send + use<> {
        let spec = self.spec.clone();
        let now = self.state.options.wall_clock;
        move |steps| SavedWeights { steps, spec, saved: now(), notes }
    }

    /// Saves weights and optimizer with notes; `overwrite` replaces others of this name.
    pub fn save(&self, name: &str, overwrite: bool, notes: CheckpointNotes) -> Pending<String> {
        let address = self.address(CheckpointPurpose::Training, name);
        let saved = self.saved_with(notes);
        self.queue(AdapterRequest::SaveState(name.into()), move |state, number, weights, _| {
            (state.options.on_save)(number, &mut ())?;
            state.keep(address, saved(weights.version), overwrite)
        })
    }

    /// Exports a sampler, and saves its weights with notes if a name is given.
    pub fn export(&self, name: Option<&str>, notes: CheckpointNotes) -> Pending<Export> {
        let address = name.map(|name| self.address(CheckpointPurpose::Sampler, name));
        let saved = self.saved_with(notes);
        self.queue(AdapterRequest::Export(name.map(Into::into)), move |state, number, weights, _| {
            (state.options.on_export)(number, &mut ())?;
            let version = weights.version;
            let path = address.map(|address| state.keep(address, saved(version), false)).transpose()?;
            let weights = SimulatedWeights::Fixed(version);
            Ok(Export { sampler: Arc::new(SimulatedSampler { state: state.clone(), weights }), path })
        })
    }
}

/// Executes the jobs of an adapter, one after the other.
async fn work(
    state: Arc<SimulationState>,
    mut queue: mpsc::UnboundedReceiver<Job>,
    mut weights: AdapterProgress,
) {
    while let Some(job) = queue.recv().await {
        let _turn = state.turn().await;
        // Requests that wait at the start of a cycle share it.
        let shared = if state.options.cycle.is_zero() { 0 } else { queue.len() };
        weights = job(weights).await;
        for _ in 0..shared {
            let Ok(job) = queue.try_recv() else { break };
            weights = job(weights).await;
        }
    }
}

impl Drop for SimulatedTraining {
    fn drop(&mut self) {
        self.state.count(|counts| counts.live_adapters -= 1);
    }
}

impl SimulationState {
    /// Time that an adapter spends on a request, in seconds.
    fn training_time(&self, request: &AdapterRequest, weights: AdapterProgress, case: [u64; 2]) -> f64 {
        let options = &self.options;
        match request {
            AdapterRequest::Forward(data) | AdapterRequest::ForwardBackward(data) => {
                let whole = self.draw(&options.forward_backward, DrawKind::Pass, case);
                match options.pass_time {
                    PassTime::Constant => whole,
                    PassTime::PerBatch(batch) => whole * data.len() as f64 / batch as f64,
                    PassTime::PerDatum { datum, token } => {
                        let first = if weights.gradients { 0.0 } else { whole };
                        let tokens: usize = data.iter().map(Datum::len).sum();
                        let rest = datum * data.len() as f64 + token * tokens as f64;
                        (first + self.slowness() * rest).min(LONGEST)
                    }
                }
            }
            AdapterRequest::OptimStep(_) => self.draw(&options.optim_step, DrawKind::Step, case),
            AdapterRequest::Export(_) | AdapterRequest::PublishInFlight(_) => {
                self.draw(&options.export, DrawKind::Export, case)
            }
            AdapterRequest::SaveState(_) | AdapterRequest::LoadState(..) => {
                self.draw(&options.save, DrawKind::Save, case)
            }
            AdapterRequest::Release => 0.0,
        }
    }

    /// Computes the result of a pass under weights of a version.
    fn pass(&self, version: u64, data: &[Datum], loss: Loss) -> Result<ForwardOutput, BackendError> {
        let logprob = Self::logprob(version);
        let mut sum = 0.0;
        for datum in data {
            self.check_tokens(datum.input())?;
            self.check_tokens(datum.targets())?;
            let weighted = matches!(datum.inputs(), LossInputs::Weights(_));
            if weighted != (loss == Loss::CrossEntropy) {
                let problem = format!("`{}` needs other tensors", loss.name());
                return Err(BackendError::Rejected(problem));
            }
            let logprobs = vec![logprob; datum.len()];
            // A stand-in where the formula is not public.
            let public = loss.of_datum(datum, &logprobs);
            sum += public.or(Loss::ImportanceSampling.of_datum(datum, &logprobs)).unwrap_or(0.0);
        }
        let logprobs = data.iter().map(|datum| vec![logprob; datum.len()]).collect();
        Ok(ForwardOutput { logprobs, metrics: [("loss:sum".into(), sum)].into() })
    }
}

impl TrainingBackend for SimulatedTraining {
    fn forward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.queue(AdapterRequest::Forward(data), move |state, _, weights, request| {
            state.pass(weights.version, request.data(), loss)
        })
    }

    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.queue(AdapterRequest::ForwardBackward(data), move |state, number, weights, request| {
            let mut output = state.pass(weights.version, request.data(), loss)?;
            (state.options.on_pass)(number, &mut output)?;
            weights.gradients = true;
            if state.options.numbered {
                (state.options.on_trained)(&state.trained(request.data(), weights.version));
            }
            Ok(output)
        })
    }

    fn optim_step(&self, params: AdamParams) -> Pending<OptimStep> {
        self.queue(AdapterRequest::OptimStep(params), move |state, number, weights, _| {
            params.check().map_err(|error| BackendError::Rejected(error.to_string()))?;
            let gradients = std::mem::take(&mut weights.gradients);
            let mut step = OptimStep::default();
            (state.options.on_step)(number, &mut step)?;
            weights.version += u64::from(gradients);
            Ok(step)
        })
    }

    fn save_state(&self, name: &str) -> Pending<String> {
        self.save(name, false, CheckpointNotes::default())
    }

    fn load_state(&self, path: &str, with_optimizer: bool) -> Pending<()> {
        let path = path.to_owned();
        self.queue(AdapterRequest::LoadState(path.clone(), with_optimizer), move |state, _, weights, _| {
            *weights = AdapterProgress { version: state.find(&path)?.steps, gradients: false };
            Ok(())
        })
    }

    fn export_sampler(&self, name: Option<&str>) -> Pending<Export> {
        self.export(name, CheckpointNotes::default())
    }

    fn publish_in_flight(&self, version: PolicyVersion) -> Pending<Arc<dyn SamplingBackend>> {
        let publications = self.publications.clone();
        self.queue(AdapterRequest::PublishInFlight(version), move |state, number, weights, _| {
            (state.options.on_export)(number, &mut ())?;
            publications.publish(version, weights.version);
            let weights = SimulatedWeights::InFlight(publications);
            Ok(Arc::new(SimulatedSampler { state: state.clone(), weights }) as Arc<dyn SamplingBackend>)
        })
    }

    fn release(&self) -> Pending<()> {
        self.queue(AdapterRequest::Release, |_, _, _, _| Ok(()))
    }
}
