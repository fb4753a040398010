//! A Tinker server behind core's traits.

use crate::client::{
    Client, ClientError, ClientFuture, ClientOptions, ModelLimits, SamplingClient, TrainingClient,
};
use crate::convert::lora_to_wire;
use crate::types::LoraConfig;
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
use std::sync::Arc;
use std::time::Duration;

/// Sequence length that is assumed where neither the server nor the options give one.
const CONTEXT: usize = 32_768;

/// Vocabulary size that is assumed where neither the server nor the options give one: all tokens of the wire.
const VOCAB: usize = i32::MAX as usize;

/// Properties of the model, for servers that do not report them.
#[derive(Clone, Debug, Default)]
pub struct RemoteOptions {
    /// Name of the base model.
    pub base_model: String,
    /// Maximum sequence length in tokens.
    pub context: Option<usize>,
    /// Tokens in the vocabulary, for example the tokenizer's.
    pub vocab: Option<usize>,
    /// Whether `topk_prompt_logprobs` may be requested. No server reports this.
    pub topk_prompt_logprobs: bool,
    /// Whether to accept a model that is not in the server's list: some lists are incomplete.
    pub any_model: bool,
}

/// A base model on a Tinker server.
pub struct RemoteService {
    client: Client,
    info: ServiceInfo,
    limits: ModelLimits,
    keeps_samplers: bool,
}

impl RemoteService {
    /// Connects, and queries the server's limits for the model.
    ///
    /// # Errors
    /// No connection, or a list of named models without this one. Entries without a name are ignored.
    pub async fn connect(options: &ClientOptions, model: RemoteOptions) -> Result<Self, ClientError> {
        let client = Client::connect(options).await?;
        let offered = match client.capabilities().await {
            Ok(capabilities) => capabilities.supported_models,
            Err(ClientError::Unsupported { .. }) => vec![],
            Err(error) => return Err(error),
        };
        let named = |name: &str| offered.iter().find(|model| model.model_name.as_deref() == Some(name));
        let found = named(&model.base_model);
        let names: Vec<&str> = offered.iter().filter_map(|model| model.model_name.as_deref()).collect();
        if found.is_none() && !names.is_empty() && !model.any_model {
            return Err(ClientError::Rejected {
                what: format!("the model {}", model.base_model),
                detail: format!(
                    "{} serves {} (`tinker.any_model = true` asks it for others)",
                    client.server(),
                    names.join(", ")
                ),
            });
        }
        let limits = ModelLimits {
            vocab: found.and_then(|m| m.vocab_size).or(model.vocab),
            context: found.and_then(|m| m.max_context_length).or(model.context),
        };
        let info = ServiceInfo {
            name: client.server(),
            base_model: model.base_model,
            context: limits.context.unwrap_or(CONTEXT),
            vocab: limits.vocab.unwrap_or(VOCAB),
            topk_prompt_logprobs: model.topk_prompt_logprobs,
        };
        let keeps_samplers = client.keeps_samplers().await;
        Ok(Self { client, info, limits, keeps_samplers })
    }

    /// The underlying client, for operations that the traits do not cover.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// See [`Client::keeps_samplers`]. Off-policy training needs it.
    #[must_use]
    pub fn keeps_samplers(&self) -> bool {
        self.keeps_samplers
    }
}

#[async_trait]
impl Service for RemoteService {
    fn info(&self) -> ServiceInfo {
        self.info.clone()
    }

    async fn create_training(&self, spec: LoraSpec) -> Result<Arc<dyn TrainingBackend>, BackendError> {
        let lora: LoraConfig = lora_to_wire(&spec)?;
        let training = self.client.create_training(&self.info.base_model, lora, self.limits).await?;
        Ok(Arc::new(RemoteTraining(training)))
    }

    async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Ok(Arc::new(RemoteSampler(self.client.base_sampler(&self.info.base_model, self.limits).await?)))
    }

    async fn sampler_from(&self, path: &str) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Ok(Arc::new(RemoteSampler(self.client.sampler_from(path, self.limits).await?)))
    }

    async fn delete(&self, path: &str) -> Result<(), BackendError> {
        Ok(self.client.delete_checkpoint(path).await?)
    }

    async fn expire(&self, path: &str, after: Duration) -> Result<(), BackendError> {
        Ok(self.client.set_ttl(path, Some(after)).await?)
    }
}

struct RemoteTraining(TrainingClient);

impl TrainingBackend for RemoteTraining {
    fn forward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        pending(self.0.forward(data, loss))
    }

    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        pending(self.0.forward_backward(data, loss))
    }

    fn optim_step(&self, params: AdamParams) -> Pending<OptimStep> {
        pending(self.0.optim_step(params))
    }

    fn save_state(&self, name: &str) -> Pending<String> {
        pending(self.0.save_state(name))
    }

    fn load_state(&self, path: &str, with_optimizer: bool) -> Pending<()> {
        pending(self.0.load_state(path, with_optimizer))
    }

    fn export_sampler(&self, name: Option<&str>) -> Pending<Export> {
        let answer = self.0.sampler(name);
        Box::pin(async move {
            let made = answer.await?;
            Ok(Export { sampler: Arc::new(RemoteSampler(made.sampler)), path: made.path })
        })
    }

    /// The API does not tell which weights sampled a token, so `version` is not sent.
    fn publish_in_flight(&self, _version: PolicyVersion) -> Pending<Arc<dyn SamplingBackend>> {
        let answer = self.0.in_flight_sampler();
        Box::pin(async move { Ok(Arc::new(RemoteSampler(answer.await?)) as Arc<dyn SamplingBackend>) })
    }

    fn release(&self) -> Pending<()> {
        pending(self.0.unload())
    }
}

struct RemoteSampler(SamplingClient);

#[async_trait]
impl SamplingBackend for RemoteSampler {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        Ok(self.0.sample(&request).await?)
    }

    async fn logprobs_from(
        &self,
        tokens: Arc<[Token]>,
        from: usize,
    ) -> Result<Vec<Option<f32>>, BackendError> {
        Ok(self.0.logprobs_from(tokens, from).await?)
    }
}

fn pending<T: Send + 'static>(answer: ClientFuture<T>) -> Pending<T> {
    Box::pin(async move { Ok(answer.await?) })
}
