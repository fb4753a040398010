//! A scripted service: samplers, adapters whose requests run in the order of the calls, and a record of it all.

use async_trait::async_trait;
use minds_core::datum::Datum;
use minds_core::ids::Token;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{Completion, SampleRequest, SampleResponse, StopReason};
use minds_core::service::{
    BackendError, Export, ForwardOutput, OptimStep, Pending, SamplingBackend, Service, ServiceInfo,
    TrainingBackend,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};

/// A sample request as the service saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Steps behind the weights that were asked.
    pub version: u64,
    pub seed: u64,
    pub samples: usize,
    pub max_tokens: usize,
    pub prompt: Arc<[Token]>,
    pub at: Instant,
}

type Latency = Box<dyn Fn(usize) -> Duration + Send + Sync>;
type Answer = Box<dyn Fn(usize, &mut Vec<Completion>) -> Result<(), BackendError> + Send + Sync>;

/// May change what a pass reports about its data.
type Telling = Box<dyn Fn(usize, &mut Vec<Vec<f32>>) + Send + Sync>;

/// What all samplers of a service share. Scripts get the number of the request, counted from 0.
pub struct Sampling {
    pub latency: Latency,
    /// May change or refuse what a request brings.
    pub answer: Answer,
    pub query_latency: Latency,
    /// Fails the n-th logprob query.
    pub query: Box<dyn Fn(usize) -> Result<(), BackendError> + Send + Sync>,
    pub asked: Mutex<Vec<Asked>>,
    /// Whether prompts are recorded with the requests, for inspection by tests.
    pub remember: bool,
    /// The prompts of all sample requests that are still referenced elsewhere.
    pub prompts: Mutex<Vec<Weak<[Token]>>>,
    pub queries: AtomicU64,
    /// Requests of every kind that the service has seen, those of adapters included.
    pub requests: watch::Sender<usize>,
    /// Steps behind the weights of each saved state, by its path.
    pub saved: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            latency: Box::new(|_| Duration::ZERO),
            answer: Box::new(|_, _| Ok(())),
            query_latency: Box::new(|_| Duration::ZERO),
            query: Box::new(|_| Ok(())),
            asked: Mutex::default(),
            remember: true,
            prompts: Mutex::default(),
            queries: AtomicU64::new(0),
            requests: watch::Sender::new(0),
            saved: Arc::default(),
        }
    }
}

pub struct Sampler {
    pub sampling: Arc<Sampling>,
    pub version: u64,
}

#[async_trait]
impl SamplingBackend for Sampler {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        self.sampling.requests.send_modify(|n| *n += 1);
        let number = {
            let mut asked = self.sampling.asked.lock().unwrap();
            let seed = request.params.seed.unwrap();
            let (samples, remember) = (request.num_samples, self.sampling.remember);
            let prompt = if remember { request.prompt.clone() } else { Arc::default() };
            self.sampling.prompts.lock().unwrap().push(Arc::downgrade(&request.prompt));
            let (version, max_tokens) = (self.version, request.params.max_tokens);
            asked.push(Asked { version, seed, samples, max_tokens, prompt, at: Instant::now() });
            asked.len() - 1
        };
        sleep((self.sampling.latency)(number)).await;
        let sample = |n: usize| Completion {
            tokens: vec![Token::from(b'a') + n as Token, Token::from(b'.')],
            logprobs: vec![-0.5, -0.25],
            stop: StopReason::Stop,
            topk: None,
        };
        let mut sequences = (0..request.num_samples).map(sample).collect();
        (self.sampling.answer)(number, &mut sequences)?;
        Ok(SampleResponse {
            sequences,
            prompt_logprobs: None,
            topk_prompt_logprobs: None,
            cached_prompt_tokens: 0,
        })
    }

    /// Minus one for the start weights, minus a half after a step, and so on.
    async fn logprobs(&self, tokens: Arc<[Token]>) -> Result<Vec<Option<f32>>, BackendError> {
        self.sampling.requests.send_modify(|n| *n += 1);
        let number = self.sampling.queries.fetch_add(1, Relaxed) as usize;
        sleep((self.sampling.query_latency)(number)).await;
        (self.sampling.query)(number)?;
        Ok((0..tokens.len()).map(|at| (at > 0).then_some(-1.0 / (self.version + 1) as f32)).collect())
    }
}

/// How an adapter behaves. Scripts get the number of the request of their kind, counted from 0.
pub struct TrainingScript {
    pub forward_backward: Duration,
    pub optim: Duration,
    pub export: Duration,
    pub save: Duration,
    pub refuse: Box<dyn Fn(usize) -> Result<(), BackendError> + Send + Sync>,
    pub refuse_optim: Box<dyn Fn(usize) -> Result<(), BackendError> + Send + Sync>,
    pub refuse_export: Box<dyn Fn(usize) -> Result<(), BackendError> + Send + Sync>,
    /// May change the logprobs that a forward_backward returns.
    pub logprobs: Telling,
    /// Gradient norms that the first optimizer steps report; later ones report none.
    pub norms: Vec<f64>,
    /// Panics at this forward_backward.
    pub panic_at: Option<usize>,
    /// Whether the data of all passes are kept, for tests to look at.
    pub remember: bool,
    /// While false, no forward_backward is answered.
    pub unplugged: watch::Sender<bool>,
}

impl Default for TrainingScript {
    fn default() -> Self {
        Self {
            forward_backward: Duration::ZERO,
            optim: Duration::ZERO,
            export: Duration::ZERO,
            save: Duration::ZERO,
            refuse: Box::new(|_| Ok(())),
            refuse_optim: Box::new(|_| Ok(())),
            refuse_export: Box::new(|_| Ok(())),
            logprobs: Box::new(|_, _| ()),
            norms: Vec::new(),
            panic_at: None,
            remember: true,
            unplugged: watch::Sender::new(true),
        }
    }
}

/// One adapter. Must be made on a runtime.
pub struct Training {
    script: Arc<TrainingScript>,
    sampling: Arc<Sampling>,
    /// Requests in the order of the calls.
    pub calls: Mutex<Vec<String>>,
    /// The data of every forward_backward.
    pub data: Mutex<Vec<Vec<Datum>>>,
    /// The settings of every optimizer step.
    pub adam: Mutex<Vec<AdamParams>>,
    counts: [AtomicU64; 3],
    names: Mutex<Vec<String>>,
    /// Optimizer steps since the start.
    version: Arc<AtomicU64>,
    jobs: mpsc::UnboundedSender<futures::future::BoxFuture<'static, ()>>,
}

impl Training {
    pub fn new(script: Arc<TrainingScript>, sampling: Arc<Sampling>, version: u64) -> Arc<Self> {
        let (jobs, mut queue) = mpsc::unbounded_channel::<futures::future::BoxFuture<'static, ()>>();
        tokio::spawn(async move {
            while let Some(job) = queue.recv().await {
                job.await;
            }
        });
        Arc::new(Self {
            script,
            sampling,
            calls: Mutex::default(),
            data: Mutex::default(),
            adam: Mutex::default(),
            counts: Default::default(),
            names: Mutex::default(),
            version: Arc::new(AtomicU64::new(version)),
            jobs,
        })
    }

    fn queue<T: Send + 'static>(
        &self,
        call: String,
        job: impl Future<Output = Result<T, BackendError>> + Send + 'static,
    ) -> Pending<T> {
        self.sampling.requests.send_modify(|n| *n += 1);
        self.calls.lock().unwrap().push(call);
        let (answer, result) = oneshot::channel();
        let job = async move { drop(answer.send(job.await)) };
        self.jobs.send(Box::pin(job)).unwrap();
        Box::pin(async move { result.await.unwrap_or(Err(BackendError::Lost("gone".into()))) })
    }

    fn count(&self, kind: usize) -> usize {
        self.counts[kind].fetch_add(1, Relaxed) as usize
    }

    fn claim(&self, name: String) -> Result<(), BackendError> {
        let mut names = self.names.lock().unwrap();
        if names.contains(&name) {
            return Err(BackendError::Rejected(format!("the name {name} is taken")));
        }
        names.push(name);
        Ok(())
    }
}

impl TrainingBackend for Training {
    fn forward(&self, _: Vec<Datum>, _: Loss) -> Pending<ForwardOutput> {
        unreachable!("the line never asks for it")
    }

    fn forward_backward(&self, data: Vec<Datum>, _: Loss) -> Pending<ForwardOutput> {
        let number = self.count(0);
        assert_ne!(self.script.panic_at, Some(number), "no such pass");
        if self.script.remember {
            self.data.lock().unwrap().push(data.clone());
        }
        let (script, mut plug) = (self.script.clone(), self.script.unplugged.subscribe());
        self.queue("fb".into(), async move {
            sleep(script.forward_backward).await;
            plug.wait_for(|unplugged| *unplugged).await.unwrap();
            (script.refuse)(number)?;
            let mut logprobs = data.iter().map(|d| vec![-0.5; d.len()]).collect();
            (script.logprobs)(number, &mut logprobs);
            Ok(ForwardOutput { logprobs, metrics: [("loss:sum".to_string(), 1.0)].into() })
        })
    }

    fn optim_step(&self, adam: AdamParams) -> Pending<OptimStep> {
        let number = self.count(1);
        self.adam.lock().unwrap().push(adam);
        let (script, version) = (self.script.clone(), self.version.clone());
        self.queue("optim".into(), async move {
            sleep(script.optim).await;
            (script.refuse_optim)(number)?;
            version.fetch_add(1, Relaxed);
            let norm = script.norms.get(number).map(|norm| ("grad_norm".to_string(), *norm));
            Ok(OptimStep { metrics: norm.into_iter().collect() })
        })
    }

    fn save_state(&self, name: &str) -> Pending<String> {
        let (script, claimed, path) = (self.script.clone(), self.claim(name.into()), format!("state/{name}"));
        let (saved, version) = (self.sampling.saved.clone(), self.version.clone());
        self.queue(format!("save {name}"), async move {
            sleep(script.save).await;
            claimed?;
            saved.lock().unwrap().insert(path.clone(), version.load(Relaxed));
            Ok(path)
        })
    }

    fn load_state(&self, path: &str, with_optimizer: bool) -> Pending<()> {
        let (saved, version, path) = (self.sampling.saved.clone(), self.version.clone(), path.to_owned());
        self.queue(format!("load {path} {with_optimizer}"), async move {
            let found = saved.lock().unwrap().get(&path).copied();
            let found =
                found.ok_or_else(|| BackendError::Rejected(format!("nothing is kept under {path}")))?;
            version.store(found, Relaxed);
            Ok(())
        })
    }

    fn release(&self) -> Pending<()> {
        self.queue("release".into(), async { Ok(()) })
    }

    fn export_sampler(&self, name: Option<&str>) -> Pending<Export> {
        let number = self.count(2);
        let claimed = name.map_or(Ok(()), |name| self.claim(format!("sampler/{name}")));
        let path = name.map(|name| format!("sampler/{name}"));
        let (script, sampling, version) = (self.script.clone(), self.sampling.clone(), self.version.clone());
        self.queue(format!("export {}", name.unwrap_or("-")), async move {
            let version = version.load(Relaxed);
            sleep(script.export).await;
            (script.refuse_export)(number)?;
            claimed.map(|()| Export { sampler: Arc::new(Sampler { sampling, version }), path })
        })
    }
}

/// Makes adapters and remembers them.
#[derive(Default)]
pub struct ScriptedService {
    pub script: Arc<TrainingScript>,
    pub sampling: Arc<Sampling>,
    pub made: Mutex<Vec<Weak<Training>>>,
    /// Most adapters alive at once.
    pub most: AtomicU64,
}

#[async_trait]
impl Service for ScriptedService {
    fn info(&self) -> ServiceInfo {
        let name = "scripted".to_string();
        ServiceInfo { base_model: name.clone(), name, context: 100, vocab: 256, topk_prompt_logprobs: false }
    }

    async fn create_training(&self, _: LoraSpec) -> Result<Arc<dyn TrainingBackend>, BackendError> {
        let training = Training::new(self.script.clone(), self.sampling.clone(), 0);
        let mut made = self.made.lock().unwrap();
        made.push(Arc::downgrade(&training));
        let alive = made.iter().filter(|t| t.strong_count() > 0).count() as u64;
        self.most.fetch_max(alive, Relaxed);
        Ok(training)
    }

    async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Ok(Arc::new(Sampler { sampling: self.sampling.clone(), version: 0 }))
    }

    async fn sampler_from(&self, path: &str) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Err(BackendError::Rejected(format!("nothing is kept under {path}")))
    }

    async fn delete(&self, path: &str) -> Result<(), BackendError> {
        let removed = self.sampling.saved.lock().unwrap().remove(path);
        removed.map(drop).ok_or_else(|| BackendError::Rejected(format!("nothing is kept under {path}")))
    }
}
