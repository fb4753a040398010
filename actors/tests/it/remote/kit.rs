//! A NATS server, a dispatcher, workers with threads of their own, and an environment to score, all inside the test.

use async_trait::async_trait;
use minds_core::chat::{Message, ParsedCompletion, PromptError, Renderer, Termination};
use minds_core::environment::{
    Environment, Item, Oracle, RolloutSession, ScoringContext, SelfDrivenEnvironment, SessionRollout,
};
use minds_core::ids::{GroupId, ItemKey, PolicyVersion, RolloutId, Token};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use minds_core::rollout::{Rollout, Turn};
use minds_core::sampling::{Completion, SampleRequest, SampleResponse, SamplingParams, Stop, StopReason};
use minds_core::service::{BackendError, SamplingBackend};
use minds_stages::messages::MixtureComponent;
use minds_stages::remote::message::Offer;
use minds_stages::remote::{
    Broker, BrokerOptions, Dispatcher, DispatcherOptions, EnvironmentLoader, RemoteEnvironment, StreamNames,
    StreamSettings, WorkerOptions, WorkerSummary, run_worker,
};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

pub const TASK: &str = "task";

/// A NATS server with JetStream that is killed at the end of the test.
pub struct TestBroker {
    dir: TempDir,
    port: u16,
    server: Child,
}

impl TestBroker {
    pub async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        // The port is free now, and the system does not reuse it soon.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = launch(dir.path(), port);
        let broker = Self { dir, port, server };
        broker.ready().await;
        broker
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server, like a crash.
    pub fn kill(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    /// Restarts the server with its data, or deletes the data first.
    pub async fn restart(&mut self, keeps_data: bool) {
        if !keeps_data {
            std::fs::remove_dir_all(self.dir.path().join("jetstream")).unwrap();
        }
        self.server = launch(self.dir.path(), self.port);
        self.ready().await;
    }

    async fn ready(&self) {
        for _ in 0..200 {
            if tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the NATS server does not start");
    }

    pub async fn connect(&self) -> Broker {
        Broker::connect(&BrokerOptions::new(self.url(), "test"), names()).await.unwrap()
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

fn launch(dir: &Path, port: u16) -> Child {
    let mut command = Command::new("nats-server");
    command.args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--jetstream", "--store_dir"]).arg(dir);
    let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    started.expect("tests/run.sh installs nats-server")
}

pub fn names() -> StreamNames {
    StreamNames::new("minds").unwrap()
}

/// A dispatcher with short intervals, so that it detects failures quickly.
pub async fn dispatcher(broker: &TestBroker, max_deliver: u64) -> Dispatcher {
    dispatcher_on(broker, max_deliver, StreamSettings::default()).await
}

/// A dispatcher that creates the stream with these settings.
pub async fn dispatcher_on(broker: &TestBroker, max_deliver: u64, stream: StreamSettings) -> Dispatcher {
    let options = DispatcherOptions {
        run: "run".into(),
        salt: "salt".into(),
        program: "test".into(),
        stream,
        ack_wait: Duration::from_secs(1),
        max_deliver,
        max_ack_pending: 10_000,
        audit_every: Duration::from_millis(500),
        buffer_bytes: 1 << 20,
    };
    let offer = Offer { name: TASK.into(), spec: serde_json::Value::Null, version: "1".into() };
    Dispatcher::start(broker.connect().await, options, vec![offer]).await.unwrap()
}

/// The remote environment of the task.
pub fn remote(task: &Arc<Task>, dispatcher: &Dispatcher) -> RemoteEnvironment {
    RemoteEnvironment::new(TASK, task.clone(), dispatcher.clone())
}

/// A worker with threads of its own. Dropping it simulates a crash: it stops without any message.
pub struct TestWorker {
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    summary: tokio::task::JoinHandle<WorkerSummary>,
}

impl TestWorker {
    pub fn start(broker: &TestBroker, name: &str, task: &Arc<Task>, concurrency: usize) -> Self {
        Self::with_grace(broker, name, task, concurrency, Duration::from_secs(10))
    }

    pub fn with_grace(
        broker: &TestBroker,
        name: &str,
        task: &Arc<Task>,
        concurrency: usize,
        grace: Duration,
    ) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (stop, stopped) = watch::channel(false);
        let options = WorkerOptions {
            name: name.into(),
            program: "test".into(),
            concurrency: NonZeroUsize::new(concurrency).unwrap(),
            environments: Vec::new(),
            run: None,
            grace,
        };
        let url = broker.url();
        let loader = Arc::new(Loader(task.clone()));
        let summary = runtime.spawn(async move {
            let broker = Broker::connect(&BrokerOptions::new(url, "worker"), names()).await.unwrap();
            run_worker(broker, loader, options, stopped).await
        });
        Self { runtime: Some(runtime), stop, summary }
    }

    /// Stops the worker as SIGTERM does.
    pub async fn stop(mut self) -> WorkerSummary {
        self.stop.send_replace(true);
        let summary = (&mut self.summary).await.unwrap();
        self.kill();
        summary
    }

    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for TestWorker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Loads the task of the test. Fails if the versions differ.
pub struct Loader(pub Arc<Task>);

#[async_trait]
impl EnvironmentLoader for Loader {
    async fn load(&self, offer: &Offer) -> Result<MixtureComponent, String> {
        if offer.version != self.0.version {
            return Err(format!("it is version {} here", self.0.version));
        }
        Ok(component(self.0.clone()))
    }
}

pub fn component(environment: Arc<dyn Environment>) -> MixtureComponent {
    MixtureComponent {
        name: TASK.into(),
        environment,
        renderer: Arc::new(PlainRenderer),
        group_size: NonZeroU32::MIN,
        sampling: SamplingParams::plain(4),
        max_turns: 1,
        context: 64,
        score_timeout: Duration::from_secs(30),
        weight: 1.0,
        evaluate_every: None,
    }
}

/// A renderer for components; the tests do not depend on its output.
pub struct PlainRenderer;

impl Renderer for PlainRenderer {
    fn name(&self) -> &str {
        "plain"
    }

    fn prompt(&self, messages: &[Message]) -> Result<Vec<Token>, PromptError> {
        Ok(messages.iter().flat_map(|message| message.content.bytes().map(Token::from)).collect())
    }

    fn answer(&self, text: &str) -> Vec<Token> {
        text.bytes().map(Token::from).collect()
    }

    fn stop(&self) -> Stop {
        Stop::ModelDefault
    }

    fn text(&self, tokens: &[Token]) -> String {
        tokens.iter().filter_map(|token| char::from_u32(*token)).collect()
    }

    fn parse(&self, sampled: &Completion) -> ParsedCompletion {
        ParsedCompletion { text: self.text(&sampled.tokens), termination: Termination::Stop }
    }
}

/// An environment whose reward is the sum of the completion's logprobs plus a third of the item's index.
pub struct Task {
    pub version: &'static str,
    /// Time that one reward takes.
    pub takes: Duration,
    /// Whether a reward computes for that time. Otherwise it waits.
    pub computes: bool,
    /// Whether the environment is self-driven.
    pub self_driven: bool,
    /// Number of times that each rollout was scored, by any worker.
    pub scored: Mutex<BTreeMap<RolloutId, u64>>,
    /// Number of rewards that have started.
    pub begun: AtomicU64,
}

impl Task {
    pub fn new(takes: Duration) -> Task {
        Task {
            version: "1",
            takes,
            computes: false,
            self_driven: false,
            scored: Mutex::default(),
            begun: AtomicU64::new(0),
        }
    }

    /// Waits until at least `count` rewards have started.
    pub async fn wait_begun(&self, count: u64) {
        until(|| self.begun.load(Relaxed) >= count).await;
    }

    pub fn times_scored(&self) -> u64 {
        self.scored.lock().unwrap().values().sum()
    }
}

/// Waits until the condition holds. Panics after a minute.
pub async fn until(mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .expect("the condition did not hold within a minute");
}

fn score(logprobs: &[f32], item: &Item) -> Result<Score, RewardError> {
    let sum: f32 = logprobs.iter().sum();
    let metrics = Metrics::from([("item".to_owned(), item.index as f64 / 3.0)]);
    Ok(Score { reward: Reward::new(sum + item.index as f32 / 3.0)?, metrics })
}

#[async_trait]
impl Environment for Task {
    fn id(&self) -> &str {
        TASK
    }

    fn items(&self) -> NonZeroU64 {
        NonZeroU64::MAX
    }

    fn item(&self, index: u64) -> Item {
        Item {
            index,
            prompt: vec![Message::user(format!("{index}"))],
            answer: None,
            info: serde_json::Value::Null,
        }
    }

    async fn score(&self, context: ScoringContext<'_>) -> Result<Score, RewardError> {
        self.begun.fetch_add(1, Relaxed);
        let begun = tokio::time::Instant::now();
        while self.computes && begun.elapsed() < self.takes {
            std::hint::spin_loop();
        }
        if !self.computes {
            tokio::time::sleep(self.takes).await;
        }
        let turn = &context.rollout.turns[0];
        let target: Arc<[Token]> = turn.completion.tokens[..].into();
        let logprobs = context.oracle.logprobs(turn.prompt.clone(), target).await?;
        *self.scored.lock().unwrap().entry(context.rollout.id).or_default() += 1;
        score(&logprobs, context.item)
    }

    fn self_driven(&self) -> Option<&dyn SelfDrivenEnvironment> {
        self.self_driven.then_some(self as &dyn SelfDrivenEnvironment)
    }
}

#[async_trait]
impl SelfDrivenEnvironment for Task {
    /// Samples once with each session, then scores with its oracle.
    async fn run_rollouts(&self, item: &Item, sessions: Vec<RolloutSession>) {
        for session in sessions {
            self.begun.fetch_add(1, Relaxed);
            tokio::time::sleep(self.takes).await;
            let prompt: Arc<[Token]> = [7, item.index as Token, session.attempt].into();
            let request = SampleRequest::new(prompt.clone(), 1, SamplingParams::plain(4));
            let sampled = session.sampler.sample(request).await;
            let result = async {
                let completion = sampled?.sequences.remove(0);
                let target: Arc<[Token]> = completion.tokens[..].into();
                let logprobs = session.oracle.logprobs(prompt.clone(), target).await?;
                let score = score(&logprobs, item)?;
                let turns = vec![Turn { prompt, completion, text: "answer".into(), complete: true }];
                Ok::<_, RewardError>(SessionRollout { turns, opening: item.prompt.clone().into(), score })
            };
            let result = result.await.map_err(Into::into);
            *self.scored.lock().unwrap().entry(session.rollout).or_default() += 1;
            session.finish(result);
        }
    }
}

/// A model that samples the prompt in reverse. A token's logprob depends only on the token.
pub struct TestModel;

fn logprob(token: Token) -> f32 {
    -1.0 / (1.0 + token as f32)
}

#[async_trait]
impl Oracle for TestModel {
    async fn logprobs(&self, _prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        Ok(target.iter().map(|token| logprob(*token)).collect())
    }

    async fn next_tokens(&self, _prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        Ok((0..k as Token).map(|token| (token, logprob(token))).collect())
    }
}

#[async_trait]
impl SamplingBackend for TestModel {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let tokens: Vec<Token> = request.prompt.iter().rev().copied().collect();
        let logprobs = tokens.iter().map(|token| logprob(*token)).collect();
        let completion = Completion::new(tokens, logprobs, StopReason::Stop);
        Ok(SampleResponse {
            sequences: vec![completion],
            prompt_logprobs: None,
            topk_prompt_logprobs: None,
            target_prompt_logprobs: None,
            cached_prompt_tokens: 0,
        })
    }
}

/// A rollout of one turn whose completion has these tokens.
pub fn rollout(group: u64, tokens: Vec<Token>) -> Rollout {
    let id = RolloutId { group: GroupId(group), member: 0 };
    let mut rollout = Rollout::new(id, ItemKey { component: 0, item: group }, PolicyVersion(1));
    let logprobs = vec![-0.5; tokens.len()];
    let completion = Completion::new(tokens, logprobs, StopReason::Stop);
    rollout.turns.push(Turn { prompt: [1, 2].into(), completion, text: "text".into(), complete: true });
    rollout
}

/// The reward that an environment gives a rollout.
pub async fn reward(environment: &dyn Environment, rollout: &Rollout) -> Result<Score, RewardError> {
    let item = environment.item(rollout.id.group.0);
    let context = ScoringContext { item: &item, rollout, renderer: &PlainRenderer, oracle: &TestModel };
    environment.score(context).await
}
