//! The same service, with all tokens that it bills counted, and no request beyond the cap on their price.
//!
//! The wrappers stand around the whole service, so that no sampler or adapter of a run escapes the count. A request that
//! the cap does not allow, or that the service denied to the account, waits until the run has ended: its group stays
//! unsettled, and a resumed run samples it. Only the trainer gets the error of a denied request, because it has to end its step.

use crate::usage::usage_meter::{UsageMeter, UsageReservation};
use async_trait::async_trait;
use minds_core::datum::Datum;
use minds_core::ids::PolicyVersion;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SampleResponse};
use minds_core::service::{
    BackendError, Export, ForwardOutput, OptimStep, Pending, SamplingBackend, Service, ServiceInfo,
    TrainingBackend,
};
use minds_core::usage::TokenUsage;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Who keeps the passes of an adapter below the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassReservation {
    /// The trainer reserves each batch before it submits it.
    ByTrainer,
    /// Each pass reserves its own tokens.
    ByPass,
}

/// The same service, metered.
#[must_use]
pub fn metered(inner: Arc<dyn Service>, usage: UsageMeter, passes: PassReservation) -> Arc<dyn Service> {
    Arc::new(Metered { inner, usage, passes })
}

struct Metered<T: ?Sized> {
    usage: UsageMeter,
    passes: PassReservation,
    inner: Arc<T>,
}

impl<T: ?Sized> Metered<T> {
    fn sampler(&self, inner: Arc<dyn SamplingBackend>) -> Arc<dyn SamplingBackend> {
        Arc::new(Metered { inner, usage: self.usage.clone(), passes: self.passes })
    }
}

impl UsageMeter {
    /// The result; that of a denied request never comes, because the run ends.
    async fn unless_denied<T>(&self, result: Result<T, BackendError>) -> Result<T, BackendError> {
        match result {
            Err(error @ BackendError::Denied { .. }) => {
                self.note(&error);
                std::future::pending().await
            }
            result => result,
        }
    }
}

/// Counts a request by its result.
fn settle<T>(
    reserved: UsageReservation,
    result: &Result<T, BackendError>,
    billed: impl FnOnce(&T) -> TokenUsage,
) {
    match result {
        Ok(response) => reserved.settle(billed(response)),
        Err(
            BackendError::Rejected(_)
            | BackendError::Unsupported(_)
            | BackendError::Unavailable(_)
            | BackendError::Denied { .. },
        ) => reserved.release(),
        // It may have been executed all the same.
        Err(BackendError::TimedOut(_) | BackendError::Away(_) | BackendError::Lost(_)) => drop(reserved),
    }
}

#[async_trait]
impl SamplingBackend for Metered<dyn SamplingBackend> {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let Some(reserved) = self.usage.reserve(TokenUsage::most_of_sample(&request)).await else {
            return std::future::pending().await;
        };
        let result = self.inner.sample(request.clone()).await;
        settle(reserved, &result, |response| TokenUsage::of_sample(&request, response));
        self.usage.unless_denied(result).await
    }

    fn weight_bytes(&self) -> usize {
        self.inner.weight_bytes()
    }
}

impl Metered<dyn TrainingBackend> {
    /// The same result, which is noted if the request was denied.
    fn noted<T: Send + 'static>(&self, pending: Pending<T>) -> Pending<T> {
        let usage = self.usage.clone();
        let passes = self.passes;
        Box::pin(async move {
            let result = pending.await;
            match passes {
                PassReservation::ByPass => usage.unless_denied(result).await,
                PassReservation::ByTrainer => result.inspect_err(|error| usage.note(error)),
            }
        })
    }

    fn pass(
        &self,
        most: TokenUsage,
        submit: impl FnOnce(&dyn TrainingBackend) -> Pending<ForwardOutput>,
    ) -> Pending<ForwardOutput> {
        let reserved = match self.passes {
            PassReservation::ByTrainer => self.usage.count(most),
            // The place in the order is fixed by the call, so it cannot wait for room.
            PassReservation::ByPass => match self.usage.try_reserve(most) {
                Some(reserved) => reserved,
                None => return Box::pin(std::future::pending()),
            },
        };
        let pending = submit(&*self.inner);
        let usage = self.usage.clone();
        // In a task of its own: a pass is executed whether or not its result is awaited.
        let counted = tokio::spawn(async move {
            let result = pending.await;
            settle(reserved, &result, |_| most);
            result.inspect_err(|error| usage.note(error))
        });
        let ended = |error| BackendError::Lost(format!("the task of a pass has ended: {error}"));
        self.noted(Box::pin(async move { counted.await.map_err(ended)? }))
    }
}

impl TrainingBackend for Metered<dyn TrainingBackend> {
    fn forward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.pass(TokenUsage::of_forward(&data), move |inner| inner.forward(data, loss))
    }

    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.pass(TokenUsage::of_pass(&data), move |inner| inner.forward_backward(data, loss))
    }

    fn optim_step(&self, params: AdamParams) -> Pending<OptimStep> {
        self.noted(self.inner.optim_step(params))
    }

    fn save_state(&self, name: &str) -> Pending<String> {
        self.noted(self.inner.save_state(name))
    }

    fn load_state(&self, path: &str, with_optimizer: bool) -> Pending<()> {
        self.noted(self.inner.load_state(path, with_optimizer))
    }

    fn export_sampler(&self, name: Option<&str>) -> Pending<Export> {
        let export = self.noted(self.inner.export_sampler(name));
        let usage = self.usage.clone();
        let passes = self.passes;
        Box::pin(async move {
            let Export { sampler, path } = export.await?;
            Ok(Export { sampler: Arc::new(Metered { inner: sampler, usage, passes }), path })
        })
    }

    fn publish_in_flight(&self, version: PolicyVersion) -> Pending<Arc<dyn SamplingBackend>> {
        let published = self.noted(self.inner.publish_in_flight(version));
        let usage = self.usage.clone();
        let passes = self.passes;
        Box::pin(async move {
            let inner = published.await?;
            Ok(Arc::new(Metered { inner, usage, passes }) as Arc<dyn SamplingBackend>)
        })
    }

    fn release(&self) -> Pending<()> {
        self.inner.release()
    }
}

impl Metered<dyn Service> {
    /// The same result. A denied one is noted, and never comes where no start of a run waits for it.
    async fn created<T>(&self, result: Result<T, BackendError>) -> Result<T, BackendError> {
        match self.passes {
            PassReservation::ByPass => self.usage.unless_denied(result).await,
            PassReservation::ByTrainer => result.inspect_err(|error| self.usage.note(error)),
        }
    }
}

#[async_trait]
impl Service for Metered<dyn Service> {
    fn info(&self) -> ServiceInfo {
        self.inner.info()
    }

    async fn create_training(&self, spec: LoraSpec) -> Result<Arc<dyn TrainingBackend>, BackendError> {
        let inner = self.created(self.inner.create_training(spec).await).await?;
        Ok(Arc::new(Metered { inner, usage: self.usage.clone(), passes: self.passes }))
    }

    async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        let inner = self.created(self.inner.base_sampler().await).await?;
        Ok(self.sampler(inner))
    }

    async fn sampler_from(&self, path: &str) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        let inner = self.created(self.inner.sampler_from(path).await).await?;
        Ok(self.sampler(inner))
    }

    async fn delete(&self, path: &str) -> Result<(), BackendError> {
        self.inner.delete(path).await
    }

    async fn import_weights(&self, folder: &Path, spec: &LoraSpec) -> Result<String, BackendError> {
        self.inner.import_weights(folder, spec).await
    }

    async fn expire(&self, path: &str, after: Duration) -> Result<(), BackendError> {
        self.inner.expire(path, after).await
    }
}
