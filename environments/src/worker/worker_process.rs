//! One live process: what it receives, what it sends, and how it ends.
//!
//! Whatever a process does, every task that waits for it gets its exit cause and its last output. It ends by itself,
//! when it breaks the protocol, when it sends no heartbeat although heartbeats do not depend on user code, or when it
//! is killed; all processes that it has started end with it.

use super::endpoint;
use super::json_lines::{self, JsonLineError};
use super::message::{
    EnvDescription, FromWorker, GroupPhase, ModelInfo, PythonError, RolloutReport, ToWorker, WorkerRequest,
};
use super::model_profile::ModelProfile;
use super::output::OutputTail;
use super::process_group::{ProcessGroup, write};
use super::setup::WorkerSetup;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::BufReader;
use tokio::process::ChildStdout;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{debug, warn};

/// Interval between two requests for a heartbeat.
const BEAT: Duration = Duration::from_secs(5);
/// Without a heartbeat for this long, a process counts as hung. Its heartbeats need no event loop, only a moment in
/// which no C code holds the interpreter.
const SILENCE: Duration = Duration::from_secs(120);
/// An event loop that is blocked for this long is worth a warning.
const STANDSTILL: Duration = Duration::from_secs(30);
/// An event loop that has not turned for this long counts as blocked: it turns twice a second when idle.
const BLOCKED: Duration = Duration::from_secs(2);
/// Maximum number of messages in the write queue.
const MAX_QUEUED_MESSAGES: usize = 1024;

/// Events of a rollout that its process reports.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    /// A request of user code, with its call id.
    Request(u64, WorkerRequest),
    /// The rollout is compared with others of its group, or waits for that.
    Phase(GroupPhase),
    /// The rollout has ended.
    Done(Result<RolloutReport, PythonError>),
}

/// Why a process did not start.
#[derive(Debug)]
pub(super) enum WorkerStartError {
    /// There is no module of that name.
    NoModule,
    /// Any other cause, in words.
    Failed(String),
}

/// Rows or messages that were requested, or the exception that prevented them.
type CallResult = Result<Vec<Value>, PythonError>;

/// A process that has loaded an environment.
pub(super) struct WorkerProcess {
    pub(super) name: Arc<str>,
    /// Permits for rollouts that run at the same time.
    pub(super) permits: Arc<Semaphore>,
    /// Number of rollouts that run or wait for a permit.
    pub(super) assigned: AtomicUsize,
    /// Number of responses that the service owes to its rollouts.
    pub(super) pending_responses: AtomicUsize,
    profile: Arc<ModelProfile>,
    lines: mpsc::Sender<Vec<u8>>,
    rollouts: Mutex<HashMap<String, mpsc::Sender<WorkerEvent>>>,
    calls: Mutex<HashMap<u64, oneshot::Sender<CallResult>>>,
    next_call: AtomicU64,
    kill: mpsc::Sender<String>,
    /// Whether a kill was requested, though it may not have ended yet.
    kill_requested: AtomicBool,
    /// Runtime of its own tasks, which outlive those of the rollouts.
    runtime: Handle,
    exit: watch::Receiver<Option<Arc<str>>>,
    /// Token that its programs present in HTTP requests. Never logged.
    token: String,
    heartbeat: watch::Sender<Heartbeat>,
}

/// Heartbeats of the process and its event loop.
struct Heartbeat {
    /// When its last message arrived.
    heard: Instant,
    /// Number of heartbeats received, and when its event loop had last turned by the newest of them.
    beats: u64,
    turned: Instant,
}

/// Settings for starting a process.
pub(super) struct WorkerLaunch<'a> {
    pub setup: &'a WorkerSetup,
    pub args: &'a Map<String, Value>,
    pub profile: Arc<ModelProfile>,
    pub permits: usize,
    pub seed: u64,
    pub limit: Duration,
}

impl WorkerProcess {
    /// Starts a process and waits until it has loaded the environment.
    pub(super) async fn start(
        name: Arc<str>,
        launch: &WorkerLaunch<'_>,
    ) -> Result<(Arc<Self>, EnvDescription), WorkerStartError> {
        let WorkerLaunch { setup, args, profile, permits, seed, limit } = launch;
        let failed = WorkerStartError::Failed;
        let token =
            endpoint::random_token().map_err(|e| failed(format!("the system has no randomness: {e}")))?;
        let mut child = setup.command().spawn().map_err(|error| failed(setup.cannot_start(&error)))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(failed("its pipes are missing".into()));
        };
        let tail = OutputTail::default();
        let output = tokio::spawn(tail.clone().follow(name.clone(), stderr));
        let (lines, to_write) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let (kill, killed) = mpsc::channel(1);
        let (exited, exit) = watch::channel(None);
        let now = Instant::now();
        let worker = Arc::new(Self {
            name: name.clone(),
            permits: Arc::new(Semaphore::new(*permits)),
            assigned: AtomicUsize::new(0),
            pending_responses: AtomicUsize::new(0),
            profile: profile.clone(),
            lines,
            rollouts: Mutex::default(),
            calls: Mutex::default(),
            next_call: AtomicU64::new(1),
            kill,
            kill_requested: AtomicBool::new(false),
            runtime: Handle::current(),
            exit,
            token,
            heartbeat: watch::Sender::new(Heartbeat { heard: now, beats: 0, turned: now }),
        });
        tokio::spawn(write(stdin, to_write));
        let (loaded, ready) = oneshot::channel();
        let reader = tokio::spawn(Self::read(Arc::downgrade(&worker), stdout, loaded));
        let group = ProcessGroup(child);
        let watched = Arc::downgrade(&worker);
        tokio::spawn(async move {
            let cause = group.end(killed, reader).await;
            // Its last output may still be on its way; a child that it left behind may hold the pipe open.
            drop(timeout(Duration::from_secs(1), output).await);
            let last = tail.text();
            let cause = if last.is_empty() { cause } else { format!("{cause}; its last lines:\n{last}") };
            exited.send_replace(Some(cause.into()));
            if let Some(worker) = watched.upgrade() {
                worker.permits.close();
                worker.rollouts.lock().clear();
                worker.calls.lock().clear();
            }
        });
        let facts: ModelInfo = profile.model_info();
        worker.send(&ToWorker::Hello { facts: &facts, token: &worker.token, seed: *seed }).await;
        worker.send(&ToWorker::Load { path: setup.path.as_deref(), module: &setup.module, args }).await;
        tokio::spawn(Self::monitor_heartbeat(Arc::downgrade(&worker)));
        let described = match timeout(*limit, ready).await {
            Ok(Ok(Ok(description))) => return Ok((worker, description)),
            Ok(Ok(Err((true, _)))) => WorkerStartError::NoModule,
            Ok(Ok(Err((false, error)))) => failed(error.describe()),
            Ok(Err(_)) => failed(worker.exit_cause().await),
            Err(_) => {
                worker.kill(format!("it was not loaded within {} s", limit.as_secs()));
                failed(worker.exit_cause().await)
            }
        };
        worker.kill("it could not be loaded".into());
        Err(described)
    }

    /// Sends a message to the process; has no effect if the process is dead.
    pub(super) async fn send(&self, message: &ToWorker<'_>) {
        match json_lines::encode(message) {
            Some(line) => drop(self.lines.send(line).await),
            None => self.kill("it was to be sent a message that is too long".into()),
        }
    }

    /// Sends a message without waiting for space in the queue; drops it if the queue is full.
    pub(super) fn try_send(&self, message: &ToWorker<'_>) {
        if let Some(line) = json_lines::encode(message) {
            drop(self.lines.try_send(line));
        }
    }

    /// Events of a rollout, until it is unregistered.
    pub(super) fn register(&self, rollout: &str) -> mpsc::Receiver<WorkerEvent> {
        let (sender, events) = mpsc::channel(64);
        self.rollouts.lock().insert(rollout.into(), sender);
        events
    }

    /// Later requests of this rollout get an error: the rollout is over.
    pub(super) fn unregister(&self, rollout: &str) {
        self.rollouts.lock().remove(rollout);
    }

    /// Rows of the data from `start`, at most `count`.
    pub(super) async fn rows(&self, start: u64, count: u64) -> Result<Vec<Value>, String> {
        self.call(|call| ToWorker::Rows { call, start, count }).await
    }

    /// Messages of the first prompt of an item.
    pub(super) async fn first_prompt(&self, item: u64) -> Result<Vec<Value>, String> {
        self.call(|call| ToWorker::Observe { call, item }).await
    }

    async fn call(&self, message: impl FnOnce(u64) -> ToWorker<'static>) -> Result<Vec<Value>, String> {
        let call = self.next_call.fetch_add(1, Relaxed);
        let (sender, answer) = oneshot::channel();
        self.calls.lock().insert(call, sender);
        self.send(&message(call)).await;
        match answer.await {
            Ok(Ok(values)) => Ok(values),
            Ok(Err(error)) => Err(error.describe()),
            Err(_) => Err(self.exit_cause().await),
        }
    }

    /// Kills the process and all that it has started.
    pub(super) fn kill(&self, cause: String) {
        self.kill_requested.store(true, Relaxed);
        self.permits.close();
        // The first cause is kept.
        drop(self.kill.try_send(cause));
    }

    /// Token that its programs present in HTTP requests.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Whether its event loop has been blocked since `moment`. One that cannot answer at once counts as not blocked.
    pub(super) async fn loop_stalled_since(&self, moment: Instant) -> bool {
        let mut heartbeat = self.heartbeat.subscribe();
        let before = heartbeat.borrow_and_update().beats;
        self.try_send(&ToWorker::Beat { n: before });
        let answer = heartbeat.wait_for(|heartbeat| heartbeat.beats > before);
        matches!(timeout(Duration::from_secs(1), answer).await, Ok(Ok(heartbeat)) if heartbeat.turned < moment)
    }

    /// Whether its event loop is blocked while the service owes a response to one of its rollouts: a blocking call on
    /// the loop holds up all of them.
    pub(super) async fn is_stalled(&self) -> bool {
        let turning = Instant::now().checked_sub(BLOCKED);
        self.pending_responses.load(Relaxed) > 0
            && match turning {
                Some(moment) => self.loop_stalled_since(moment).await,
                None => false,
            }
    }

    /// Waits for the process to end and returns the cause.
    pub(super) async fn exit_cause(&self) -> String {
        let mut exit = self.exit.clone();
        let cause = match exit.wait_for(Option::is_some).await {
            Ok(cause) => cause.as_deref().unwrap_or_default().to_owned(),
            Err(_) => "it is gone".to_owned(),
        };
        format!("the worker {} died: {cause}", self.name)
    }

    /// Whether it has ended or will.
    pub(super) fn is_ending(&self) -> bool {
        self.kill_requested.load(Relaxed) || self.exit.borrow().is_some()
    }

    /// Runs a task that continues after its rollout is dropped.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(work));
    }

    async fn read(
        worker: std::sync::Weak<Self>,
        stdout: ChildStdout,
        loaded: oneshot::Sender<Result<EnvDescription, (bool, PythonError)>>,
    ) -> Result<(), JsonLineError> {
        let mut stream = BufReader::with_capacity(1 << 16, stdout);
        let mut loaded = Some(loaded);
        if !json_lines::open(&mut stream).await? {
            return Ok(());
        }
        let alive = || {
            if let Some(worker) = worker.upgrade() {
                worker.heartbeat.send_modify(|heartbeat| heartbeat.heard = Instant::now());
            }
        };
        while let Some(message) = json_lines::read(&mut stream, alive).await? {
            let Some(worker) = worker.upgrade() else { return Ok(()) };
            let now = Instant::now();
            match message {
                FromWorker::Ready(description) => {
                    if let Some(loaded) = loaded.take() {
                        drop(loaded.send(Ok(description)));
                    }
                }
                FromWorker::Failed { call: 0, missing, error } => {
                    if let Some(loaded) = loaded.take() {
                        drop(loaded.send(Err((missing, error))));
                    }
                }
                FromWorker::Failed { call, error, .. } => worker.resolve_call(call, Err(error)),
                FromWorker::Reply { call, values } => worker.resolve_call(call, Ok(values)),
                FromWorker::Beat { n, lag } => {
                    let ago = Duration::try_from_secs_f64(lag).unwrap_or_default();
                    worker.heartbeat.send_modify(|heartbeat| {
                        heartbeat.beats += 1;
                        heartbeat.turned = now.checked_sub(ago).unwrap_or(now);
                    });
                    if ago > STANDSTILL {
                        warn!(worker = %worker.name, beat = n, blocked_s = lag, "its event loop is blocked");
                    }
                }
                FromWorker::Ask { call, rollout, op } => {
                    worker.handle_request(call, rollout.as_deref(), op).await
                }
                FromWorker::Phase { rollout, phase } => {
                    worker.deliver(&rollout, WorkerEvent::Phase(phase)).await;
                }
                FromWorker::Done { rollout, report, error } => {
                    let result = match (report, error) {
                        (_, Some(error)) => Err(error),
                        (Some(report), None) => Ok(report),
                        (None, None) => Ok(RolloutReport::default()),
                    };
                    worker.deliver(&rollout, WorkerEvent::Done(result)).await;
                }
            }
        }
        Ok(())
    }

    /// Requests about text are answered here; requests to the weights by their rollout.
    async fn handle_request(&self, call: u64, rollout: Option<&str>, op: WorkerRequest) {
        if let Some(answer) = self.profile.answer_text_request(&op) {
            let (ok, error) = match answer {
                Ok(answer) => (Some(answer), None),
                Err(error) => (None, Some(error.to_string())),
            };
            self.send(&ToWorker::Answer { call, ok, error }).await;
            return;
        }
        let known = match rollout {
            Some(rollout) => self.deliver(rollout, WorkerEvent::Request(call, op)).await,
            None => false,
        };
        if !known {
            let error = match rollout {
                Some(rollout) => format!("the rollout {rollout} is over"),
                None => "the policy can be queried only during a rollout".to_owned(),
            };
            self.send(&ToWorker::Answer { call, ok: None, error: Some(error) }).await;
        }
    }

    async fn deliver(&self, rollout: &str, event: WorkerEvent) -> bool {
        let sender = self.rollouts.lock().get(rollout).cloned();
        match sender {
            Some(sender) => sender.send(event).await.is_ok(),
            None => {
                debug!(worker = %self.name, rollout, "sent a message for an unknown rollout");
                false
            }
        }
    }

    fn resolve_call(&self, call: u64, result: CallResult) {
        if let Some(requester) = self.calls.lock().remove(&call) {
            drop(requester.send(result));
        }
    }

    async fn monitor_heartbeat(worker: std::sync::Weak<Self>) {
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for n in 0.. {
            beats.tick().await;
            let Some(worker) = worker.upgrade() else { return };
            if worker.is_ending() {
                return;
            }
            let silent = worker.heartbeat.borrow().heard.elapsed();
            if silent > SILENCE {
                worker.kill(format!("it gave no sign of life for {} s", silent.as_secs()));
                return;
            }
            worker.try_send(&ToWorker::Beat { n });
        }
    }
}
