//! One adapter in training on the embedded engine.
//!
//! A job works on copies and commits them at its end: a refused or failed job leaves weights, gradients and
//! moments as they were, except that a refused optimizer step drops the gradients that it was asked to apply.

use super::adapter_store::{AdapterStore, CheckpointSave};
use super::{EmbeddedSampler, EmbeddedService};
use crate::adapter::{Adapter, Grads};
use crate::error::EngineError;
use crate::optim::{AdamState, adam_step};
use crate::runtime::{AdapterSnapshot, Engine, InFlightTarget, SamplingWeights};
use crate::train::{self, LogprobRows, PassOptions, PassOutput};
use minds_core::architecture::Architecture;
use minds_core::checkpoint::{CheckpointAddress, CheckpointNotes, CheckpointPurpose};
use minds_core::datum::Datum;
use minds_core::hosting::HostedTraining as _;
use minds_core::ids::PolicyVersion;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::service::{
    BackendError, Export, ForwardOutput, OptimStep, Pending, SamplingBackend, TrainingBackend,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// An adapter of the embedded engine.
pub struct EmbeddedTraining {
    engine: Arc<Engine>,
    adapter_store: Arc<AdapterStore>,
    run: String,
    spec: LoraSpec,
    rows: LogprobRows,
    /// Locked by the training thread only.
    state: Arc<Mutex<AdapterState>>,
    /// What in-flight samplers sample from; empty until weights are published.
    in_flight: Arc<OnceLock<Arc<InFlightTarget>>>,
}

struct AdapterState {
    adapter: Adapter<f32>,
    grads: Grads<f32>,
    /// Whether a pass has added to the gradients since the last step.
    accumulated: bool,
    optimizer: AdamState<f32>,
    /// Packed copy of the current adapter; `None` until one is needed.
    snapshot: Option<Arc<AdapterSnapshot>>,
}

impl AdapterState {
    fn new(adapter: Adapter<f32>, optimizer: AdamState<f32>) -> Self {
        Self { grads: adapter.zero_grads(), accumulated: false, optimizer, snapshot: None, adapter }
    }

    /// Drops the gradients since the last step.
    fn clear_gradients(&mut self) {
        self.grads.clear();
        self.accumulated = false;
    }

    fn snapshot(&mut self) -> Arc<AdapterSnapshot> {
        let make = || Arc::new(AdapterSnapshot::new(self.adapter.weights()));
        self.snapshot.get_or_insert_with(make).clone()
    }
}

impl EmbeddedTraining {
    pub(super) fn new(
        service: &EmbeddedService,
        run: String,
        adapter: Adapter<f32>,
        optimizer: AdamState<f32>,
        rows: LogprobRows,
    ) -> Self {
        Self {
            engine: service.engine.clone(),
            adapter_store: service.adapter_store.clone(),
            run,
            spec: adapter.spec().clone(),
            rows,
            state: Arc::new(Mutex::new(AdapterState::new(adapter, optimizer))),
            in_flight: Arc::default(),
        }
    }

    /// The run under which weights are saved.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// The spec of the adapter.
    #[must_use]
    pub fn spec(&self) -> &LoraSpec {
        &self.spec
    }

    /// Queues a job on the adapter state.
    fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut AdapterState) -> Result<T, BackendError> + Send + 'static,
    ) -> Pending<T> {
        let state = self.state.clone();
        self.engine.train(move |_| job(&mut state.lock()))
    }

    fn pass(&self, data: Vec<Datum>, loss: Loss, with_gradients: bool) -> Pending<ForwardOutput> {
        let model = self.engine.model().clone();
        if let Err(error) = check_data(model.architecture(), &data, loss) {
            return refuse(error);
        }
        // Forward has no gradients to save work for, so it always returns all rows.
        let rows = if with_gradients { self.rows } else { LogprobRows::All };
        let options = PassOptions { rows, ..PassOptions::default() };
        let note = self.engine.note_trained(data.iter().map(Datum::len).sum());
        let state = self.state.clone();
        self.engine.train(move |workspace| {
            let state = &mut *state.lock();
            let snapshot = state.snapshot();
            let weights = snapshot.weights();
            let out = if with_gradients {
                let mut grads = state.grads.clone();
                let out =
                    train::forward_backward(&model, weights, &data, loss, options, &mut grads, workspace);
                let out = out.map_err(refused)?;
                if !grads.values().iter().all(|g| g.is_finite()) {
                    let reason = "the sum of the gradients is not finite; they were left as they were";
                    return Err(BackendError::Rejected(reason.into()));
                }
                state.grads = grads;
                state.accumulated = true;
                out
            } else {
                train::forward(&model, Some(weights), &data, loss, options, workspace).map_err(refused)?
            };
            note();
            Ok(answer(out, &data, rows))
        })
    }

    /// Saves under a name, which may be taken if it is to be overwritten. Returns a sampler over what was saved,
    /// and its path.
    pub(super) fn save(
        &self,
        kind: CheckpointPurpose,
        name: &str,
        overwrite: bool,
        notes: CheckpointNotes,
    ) -> Pending<(EmbeddedSampler, String)> {
        let address = match CheckpointAddress::new(&self.run, kind, name) {
            Ok(address) => address,
            Err(error) => return refuse(error.into()),
        };
        let adapter_store = self.adapter_store.clone();
        let engine = self.engine.clone();
        let save = CheckpointSave { address, overwrite, notes };
        self.submit(move |state| {
            adapter_store.save(&save, &state.adapter, &state.optimizer)?;
            Ok((
                EmbeddedSampler { engine, weights: SamplingWeights::Snapshot(state.snapshot()) },
                save.address.to_string(),
            ))
        })
    }

    /// A sampler over the current adapter.
    fn export(&self) -> Pending<EmbeddedSampler> {
        let engine = self.engine.clone();
        self.submit(move |state| {
            Ok(EmbeddedSampler { engine, weights: SamplingWeights::Snapshot(state.snapshot()) })
        })
    }
}

impl TrainingBackend for EmbeddedTraining {
    fn forward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.pass(data, loss, false)
    }

    /// With [`LogprobRows::Trained`], logprobs of positions that carry no loss are NaN: they were not computed.
    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.pass(data, loss, true)
    }

    /// Without gradients since the last step there is nothing to apply: weights and moments stay unchanged. So a
    /// step that was queued behind a refused pass does no harm.
    ///
    /// A step whose result is not finite is refused: weights and moments stay, and its gradients are dropped, so that
    /// the next step uses new ones. Parameters that are out of range are refused first, and change nothing.
    fn optim_step(&self, params: AdamParams) -> Pending<OptimStep> {
        if let Err(error) = params.check() {
            return refuse(BackendError::Rejected(error.to_string()));
        }
        let note = self.engine.note_step();
        self.submit(move |state| {
            if !state.accumulated {
                return Ok(OptimStep::default());
            }
            let stats = adam_step(&mut state.adapter, &state.grads, &mut state.optimizer, &params);
            state.clear_gradients();
            let stats = stats.map_err(|error| {
                let reason = format!("{error}: weights and moments stay, the gradients are dropped");
                BackendError::Rejected(reason)
            })?;
            state.snapshot = None;
            note();
            let metrics = [("grad_norm", stats.grad_norm), ("grad_clip", stats.clip)];
            Ok(OptimStep { metrics: metrics.map(|(key, value)| (key.to_owned(), value)).into() })
        })
    }

    fn save_state(&self, name: &str) -> Pending<String> {
        self.save_state_with(name, false, CheckpointNotes::default())
    }

    fn load_state(&self, path: &str, with_optimizer: bool) -> Pending<()> {
        let address: CheckpointAddress = match path.parse() {
            Ok(address) => address,
            Err(error) => return refuse(BackendError::from(error)),
        };
        let adapter_store = self.adapter_store.clone();
        let spec = self.spec.clone();
        self.submit(move |state| {
            let (adapter, optimizer) = adapter_store.load_training(&address, with_optimizer)?;
            check_spec(&spec, adapter.spec())?;
            *state = AdapterState::new(adapter, optimizer);
            Ok(())
        })
    }

    fn export_sampler(&self, name: Option<&str>) -> Pending<Export> {
        match name {
            Some(name) => self.save_sampler_with(name, CheckpointNotes::default()),
            None => {
                let exported = self.export();
                Box::pin(async move { Ok(Export { sampler: Arc::new(exported.await?), path: None }) })
            }
        }
    }

    fn publish_in_flight(&self, version: PolicyVersion) -> Pending<Arc<dyn SamplingBackend>> {
        let engine = self.engine.clone();
        let in_flight = self.in_flight.clone();
        self.submit(move |state| {
            let snapshot = state.snapshot();
            let first = || Arc::new(InFlightTarget::new(snapshot.clone(), version));
            let target = in_flight.get_or_init(first).clone();
            target.publish(snapshot, version);
            let sampler = EmbeddedSampler { engine, weights: SamplingWeights::InFlight(target) };
            Ok(Arc::new(sampler) as Arc<dyn SamplingBackend>)
        })
    }
}

/// The pass as the traits report it.
fn answer(out: PassOutput<f32>, data: &[Datum], rows: LogprobRows) -> ForwardOutput {
    let mut logprobs = out.logprobs;
    if rows == LogprobRows::Trained {
        for (logprobs, datum) in logprobs.iter_mut().zip(data) {
            for (position, logprob) in logprobs.iter_mut().enumerate() {
                if train::is_read(datum, position) {
                    continue;
                }
                debug_assert_eq!(*logprob, 0.0, "position {position} was computed");
                *logprob = f32::NAN;
            }
        }
    }
    ForwardOutput { logprobs, metrics: BTreeMap::from([("loss:sum".to_owned(), out.loss)]) }
}

/// Refuses data that no pass can read, before the request enters the queue.
fn check_data(arch: &Architecture, data: &[Datum], loss: Loss) -> Result<(), BackendError> {
    if data.is_empty() {
        return Err(BackendError::Rejected("the request has no data".into()));
    }
    for (index, datum) in data.iter().enumerate() {
        train::check_datum(arch, index, datum, loss).map_err(|error| match error {
            // It names the datum itself.
            EngineError::LossInputs { .. } => refused(error),
            error => BackendError::Rejected(format!("datum {index}: {error}")),
        })?;
    }
    Ok(())
}

/// Refuses weights of another form; the seed may differ.
fn check_spec(own: &LoraSpec, other: &LoraSpec) -> Result<(), BackendError> {
    let form = |spec: &LoraSpec| {
        let mut targets = spec.targets.clone();
        targets.sort_unstable();
        (spec.rank, spec.alpha.to_bits(), targets)
    };
    if form(own) == form(other) {
        return Ok(());
    }
    Err(BackendError::Rejected(format!(
        "the saved adapter has rank {}, alpha {} and {} targets, this one rank {}, alpha {} and {}",
        other.rank,
        other.alpha,
        other.targets.len(),
        own.rank,
        own.alpha,
        own.targets.len()
    )))
}

pub(super) fn refused(error: EngineError) -> BackendError {
    BackendError::Rejected(error.to_string())
}

fn refuse<T: Send + 'static>(error: BackendError) -> Pending<T> {
    Box::pin(std::future::ready(Err(error)))
}
