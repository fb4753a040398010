//! Every wait on a service ends: a request without a timely response becomes an error that names the request.
//! Every wait is counted, too.
//!
//! The wrappers stand between the stages and the service, so that no stage can omit a limit. A wait begins when
//! its response is first polled, not when the request was queued behind others.

use crate::telemetry::meters::{ServiceMeters, ServiceOperation};
use async_trait::async_trait;
use minds_core::datum::Datum;
use minds_core::ids::{PolicyVersion, Token};
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SampleResponse};
use minds_core::service::{
    BackendError, Export, ForwardOutput, OptimStep, Pending, SamplingBackend, Service, ServiceInfo,
    TrainingBackend,
};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a response may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// A sample or a logprob query.
    pub sampling: Duration,
    /// A pass, a step, a save, a load, an export.
    pub training: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { sampling: Duration::from_secs(10 * 60), training: Duration::from_secs(30 * 60) }
    }
}

impl Deadlines {
    /// The same sampler, with a time limit on its responses.
    #[must_use]
    pub fn sampler(
        self,
        inner: Arc<dyn SamplingBackend>,
        meters: &ServiceMeters,
    ) -> Arc<dyn SamplingBackend> {
        Arc::new(Timed { inner, limits: self, meters: meters.clone() })
    }

    /// The same adapter, with a time limit on its responses and on those of its exports.
    #[must_use]
    pub fn training(
        self,
        inner: Arc<dyn TrainingBackend>,
        meters: &ServiceMeters,
    ) -> Arc<dyn TrainingBackend> {
        Arc::new(Timed { inner, limits: self, meters: meters.clone() })
    }

    /// The same service, with a time limit on its responses and on those of all that it creates.
    #[must_use]
    pub fn service(self, inner: Arc<dyn Service>, meters: &ServiceMeters) -> Arc<dyn Service> {
        Arc::new(Timed { inner, limits: self, meters: meters.clone() })
    }
}

async fn within<T>(
    limit: Duration,
    meters: &ServiceMeters,
    what: ServiceOperation,
    answer: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let request = meters.enter(what);
    let asked = Instant::now();
    let result = tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
        let what = what.name();
        let limit = limit.as_secs();
        Err(BackendError::TimedOut(format!("{what} was not answered within {limit} s")))
    });
    request.ended(&result, asked.elapsed());
    result
}

struct Timed<T: ?Sized> {
    limits: Deadlines,
    meters: ServiceMeters,
    inner: Arc<T>,
}

#[async_trait]
impl SamplingBackend for Timed<dyn SamplingBackend> {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let sampling = self.inner.sample(request);
        let response = within(self.limits.sampling, &self.meters, ServiceOperation::Sample, sampling).await?;
        self.meters.sampled(&response);
        Ok(response)
    }

    async fn logprobs_from(
        &self,
        tokens: Arc<[Token]>,
        from: usize,
    ) -> Result<Vec<Option<f32>>, BackendError> {
        let scored = self.inner.logprobs_from(tokens, from);
        within(self.limits.sampling, &self.meters, ServiceOperation::Logprobs, scored).await
    }
}

impl Timed<dyn TrainingBackend> {
    fn pending<T: 'static>(&self, what: ServiceOperation, answer: Pending<T>) -> Pending<T> {
        let limit = self.limits.training;
        let meters = self.meters.clone();
        Box::pin(async move { within(limit, &meters, what, answer).await })
    }
}

impl TrainingBackend for Timed<dyn TrainingBackend> {
    fn forward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.pending(ServiceOperation::Forward, self.inner.forward(data, loss))
    }

    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.pending(ServiceOperation::ForwardBackward, self.inner.forward_backward(data, loss))
    }

    fn optim_step(&self, params: AdamParams) -> Pending<OptimStep> {
        self.pending(ServiceOperation::OptimStep, self.inner.optim_step(params))
    }

    fn save_state(&self, name: &str) -> Pending<String> {
        self.pending(ServiceOperation::SaveState, self.inner.save_state(name))
    }

    fn load_state(&self, path: &str, with_optimizer: bool) -> Pending<()> {
        self.pending(ServiceOperation::LoadState, self.inner.load_state(path, with_optimizer))
    }

    fn export_sampler(&self, name: Option<&str>) -> Pending<Export> {
        let limits = self.limits;
        let meters = self.meters.clone();
        let export = self.inner.export_sampler(name);
        self.pending(
            ServiceOperation::ExportSampler,
            Box::pin(async move {
                let Export { sampler, path } = export.await?;
                Ok(Export { sampler: limits.sampler(sampler, &meters), path })
            }),
        )
    }

    fn publish_in_flight(&self, version: PolicyVersion) -> Pending<Arc<dyn SamplingBackend>> {
        let limits = self.limits;
        let meters = self.meters.clone();
        let published = self.inner.publish_in_flight(version);
        self.pending(
            ServiceOperation::PublishInFlight,
            Box::pin(async move { Ok(limits.sampler(published.await?, &meters)) }),
        )
    }

    fn release(&self) -> Pending<()> {
        self.pending(ServiceOperation::Release, self.inner.release())
    }
}

#[async_trait]
impl Service for Timed<dyn Service> {
    fn info(&self) -> ServiceInfo {
        self.inner.info()
    }

    async fn create_training(&self, spec: LoraSpec) -> Result<Arc<dyn TrainingBackend>, BackendError> {
        let training = within(
            self.limits.training,
            &self.meters,
            ServiceOperation::CreateTraining,
            self.inner.create_training(spec),
        )
        .await?;
        Ok(self.limits.training(training, &self.meters))
    }

    async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        let sampler = within(
            self.limits.training,
            &self.meters,
            ServiceOperation::BaseSampler,
            self.inner.base_sampler(),
        )
        .await?;
        Ok(self.limits.sampler(sampler, &self.meters))
    }

    async fn sampler_from(&self, path: &str) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        let sampler = within(
            self.limits.training,
            &self.meters,
            ServiceOperation::SamplerFrom,
            self.inner.sampler_from(path),
        )
        .await?;
        Ok(self.limits.sampler(sampler, &self.meters))
    }

    async fn delete(&self, path: &str) -> Result<(), BackendError> {
        within(self.limits.training, &self.meters, ServiceOperation::Delete, self.inner.delete(path)).await
    }

    async fn import_weights(&self, folder: &Path, spec: &LoraSpec) -> Result<String, BackendError> {
        let importing = self.inner.import_weights(folder, spec);
        within(self.limits.training, &self.meters, ServiceOperation::LoadState, importing).await
    }

    async fn expire(&self, path: &str, after: Duration) -> Result<(), BackendError> {
        within(self.limits.training, &self.meters, ServiceOperation::Expire, self.inner.expire(path, after))
            .await
    }
}
