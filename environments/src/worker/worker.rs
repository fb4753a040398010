//! One living process: what it is told, what it says, and how it ends.
//!
//! Whatever a process does, everybody who waits for it hears of its end, with its last words. It ends by itself, when
//! it lies, when it gives no sign of life although its signs do not depend on user code, or when it is killed; and with
//! it ends everything that it has started.

use super::endpoint;
use super::frame::{self, FrameError};
use super::host::Host;
use super::message::{Description, Facts, FromHost, Op, Phase, PyError, Report, ToHost};
use super::output::Tail;
use super::process::{Group, write};
use super::voice::Voice;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::BufReader;
use tokio::process::ChildStdout;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{debug, warn};

/// Between two questions for a sign of life.
const BEAT: Duration = Duration::from_secs(5);
/// Without a sign of life for so long, a process is taken for hung. Its signs need no event loop, only a moment in
/// which no C code holds the interpreter.
const SILENCE: Duration = Duration::from_secs(120);
/// An event loop that is blocked for so long is worth a warning.
const STANDSTILL: Duration = Duration::from_secs(30);
/// An event loop that has not turned for so long stands still: it turns twice a second when nothing else is to do.
const BLOCKED: Duration = Duration::from_secs(2);
/// Frames that may wait to be written.
const OUTBOX: usize = 1024;

/// What a rollout hears from its process.
#[derive(Debug)]
pub(super) enum Event {
    /// User code asks something.
    Ask(u64, Op),
    /// The rollout is compared with others of its group, or waits for that.
    Phase(Phase),
    /// The rollout has ended.
    Done(Result<Report, PyError>),
}

/// Why a process did not come to life.
#[derive(Debug)]
pub(super) enum StartError {
    /// There is no module of that name.
    NoModule,
    /// Everything else, in words.
    Failed(String),
}

/// Rows of the data, or why there are none.
type Rows = Result<Vec<Value>, PyError>;

/// A process with an environment.
pub(super) struct Worker {
    pub(super) name: Arc<str>,
    /// Rollouts that may still be played at the same time.
    pub(super) slots: Arc<Semaphore>,
    /// Rollouts that are played or wait for a slot.
    pub(super) assigned: AtomicUsize,
    /// Answers that the service owes to its rollouts.
    pub(super) owed: AtomicUsize,
    voice: Arc<Voice>,
    outbox: mpsc::Sender<Vec<u8>>,
    rollouts: Mutex<HashMap<String, mpsc::Sender<Event>>>,
    calls: Mutex<HashMap<u64, oneshot::Sender<Rows>>>,
    next_call: AtomicU64,
    kill: mpsc::Sender<String>,
    /// Whether it has been killed, though it may not have ended yet.
    doomed: AtomicBool,
    /// Where its own tasks run, which outlive those of the rollouts.
    runtime: Handle,
    death: watch::Receiver<Option<Arc<str>>>,
    /// What its programs show where they ask over HTTP. Never printed.
    token: String,
    pulse: watch::Sender<Pulse>,
}

/// Signs of life.
struct Pulse {
    /// When it last said anything.
    heard: Instant,
    /// How many of its answers to a beat have come, and when its event loop had last turned by the newest of them.
    beats: u64,
    turned: Instant,
}

/// What a process is started with.
pub(super) struct Launch<'a> {
    pub host: &'a Host,
    pub args: &'a Map<String, Value>,
    pub voice: Arc<Voice>,
    pub slots: usize,
    pub seed: u64,
    pub limit: Duration,
}

impl Worker {
    /// Starts a process and waits until it has loaded the environment.
    pub(super) async fn start(
        name: Arc<str>,
        launch: &Launch<'_>,
    ) -> Result<(Arc<Self>, Description), StartError> {
        let Launch { host, args, voice, slots, seed, limit } = launch;
        let failed = StartError::Failed;
        let token = endpoint::secret().map_err(|e| failed(format!("there is no randomness: {e}")))?;
        let mut child = host
            .command()
            .spawn()
            .map_err(|e| failed(format!("`{}` cannot be started: {e}", host.interpreter())))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(failed("its pipes are missing".into()));
        };
        let tail = Tail::default();
        let output = tokio::spawn(tail.clone().follow(name.clone(), stderr));
        let (outbox, to_write) = mpsc::channel(OUTBOX);
        let (kill, killed) = mpsc::channel(1);
        let (died, death) = watch::channel(None);
        let now = Instant::now();
        let worker = Arc::new(Self {
            name: name.clone(),
            slots: Arc::new(Semaphore::new(*slots)),
            assigned: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
            voice: voice.clone(),
            outbox,
            rollouts: Mutex::default(),
            calls: Mutex::default(),
            next_call: AtomicU64::new(1),
            kill,
            doomed: AtomicBool::new(false),
            runtime: Handle::current(),
            death,
            token,
            pulse: watch::Sender::new(Pulse { heard: now, beats: 0, turned: now }),
        });
        tokio::spawn(write(stdin, to_write));
        let (loaded, ready) = oneshot::channel();
        let reader = tokio::spawn(Self::read(Arc::downgrade(&worker), stdout, loaded));
        let group = Group(child);
        let watched = Arc::downgrade(&worker);
        tokio::spawn(async move {
            let cause = group.end(killed, reader).await;
            // What it printed last may still be on its way; a child that it left behind may hold the pipe open.
            drop(timeout(Duration::from_secs(1), output).await);
            let last = tail.text();
            let cause = if last.is_empty() { cause } else { format!("{cause}; its last lines:\n{last}") };
            died.send_replace(Some(cause.into()));
            if let Some(worker) = watched.upgrade() {
                worker.slots.close();
                lock(&worker.rollouts).clear();
                lock(&worker.calls).clear();
            }
        });
        let facts: Facts = voice.facts();
        worker.send(&ToHost::Hello { facts: &facts, token: &worker.token, seed: *seed }).await;
        worker.send(&ToHost::Load { path: host.path.as_deref(), module: &host.module, args }).await;
        tokio::spawn(Self::keep_pulse(Arc::downgrade(&worker)));
        let described = match timeout(*limit, ready).await {
            Ok(Ok(Ok(description))) => return Ok((worker, description)),
            Ok(Ok(Err((true, _)))) => StartError::NoModule,
            Ok(Ok(Err((false, error)))) => failed(error.told()),
            Ok(Err(_)) => failed(worker.cause_of_death().await),
            Err(_) => {
                worker.kill(format!("it was not loaded within {} s", limit.as_secs()));
                failed(worker.cause_of_death().await)
            }
        };
        worker.kill("it could not be loaded".into());
        Err(described)
    }

    /// Tells the process something; if it is dead, nobody hears it.
    pub(super) async fn send(&self, message: &ToHost<'_>) {
        match frame::encode(message) {
            Some(frame) => drop(self.outbox.send(frame).await),
            None => self.kill("it was to be sent a frame that is too long".into()),
        }
    }

    /// Tells it something without waiting for room.
    pub(super) fn hint(&self, message: &ToHost<'_>) {
        if let Some(frame) = frame::encode(message) {
            drop(self.outbox.try_send(frame));
        }
    }

    /// Events of a rollout, until it is left out again.
    pub(super) fn enter(&self, rollout: &str) -> mpsc::Receiver<Event> {
        let (sender, events) = mpsc::channel(64);
        lock(&self.rollouts).insert(rollout.into(), sender);
        events
    }

    /// Whoever still asks for this rollout is told that it is over.
    pub(super) fn leave(&self, rollout: &str) {
        lock(&self.rollouts).remove(rollout);
    }

    /// Rows of the data.
    pub(super) async fn rows(&self, start: u64, count: u64) -> Result<Vec<Value>, String> {
        let call = self.next_call.fetch_add(1, Relaxed);
        let (sender, answer) = oneshot::channel();
        lock(&self.calls).insert(call, sender);
        self.send(&ToHost::Rows { call, start, count }).await;
        match answer.await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(error.told()),
            Err(_) => Err(self.cause_of_death().await),
        }
    }

    /// Ends the process and all that it has started.
    pub(super) fn kill(&self, cause: String) {
        self.doomed.store(true, Relaxed);
        self.slots.close();
        // One cause is enough.
        drop(self.kill.try_send(cause));
    }

    /// What its programs show where they ask over HTTP.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Asks whether its event loop has stood still since then. One that cannot say so at once is not said to have.
    pub(super) async fn has_stood_since(&self, moment: Instant) -> bool {
        let mut pulse = self.pulse.subscribe();
        let before = pulse.borrow_and_update().beats;
        self.hint(&ToHost::Beat { n: before });
        let answer = pulse.wait_for(|pulse| pulse.beats > before);
        matches!(timeout(Duration::from_secs(1), answer).await, Ok(Ok(pulse)) if pulse.turned < moment)
    }

    /// Whether its event loop stands still while the service owes an answer to one of its rollouts: a blocking call on
    /// the loop holds up all of them.
    pub(super) async fn is_held_up(&self) -> bool {
        let turning = Instant::now().checked_sub(BLOCKED);
        self.owed.load(Relaxed) > 0
            && match turning {
                Some(moment) => self.has_stood_since(moment).await,
                None => false,
            }
    }

    /// Waits for the end of the process.
    pub(super) async fn cause_of_death(&self) -> String {
        let mut death = self.death.clone();
        let cause = match death.wait_for(Option::is_some).await {
            Ok(cause) => cause.as_deref().unwrap_or_default().to_owned(),
            Err(_) => "it is gone".to_owned(),
        };
        format!("the worker {} died: {cause}", self.name)
    }

    /// Whether it has ended or will.
    pub(super) fn is_dead(&self) -> bool {
        self.doomed.load(Relaxed) || self.death.borrow().is_some()
    }

    /// Work that goes on when the rollout that it is for has been given up.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(work));
    }

    async fn read(
        worker: std::sync::Weak<Self>,
        stdout: ChildStdout,
        loaded: oneshot::Sender<Result<Description, (bool, PyError)>>,
    ) -> Result<(), FrameError> {
        let mut stream = BufReader::with_capacity(1 << 16, stdout);
        let mut loaded = Some(loaded);
        if !frame::open(&mut stream).await? {
            return Ok(());
        }
        let alive = || {
            if let Some(worker) = worker.upgrade() {
                worker.pulse.send_modify(|pulse| pulse.heard = Instant::now());
            }
        };
        while let Some(message) = frame::read(&mut stream, alive).await? {
            let Some(worker) = worker.upgrade() else { return Ok(()) };
            let now = Instant::now();
            match message {
                FromHost::Ready(description) => {
                    if let Some(loaded) = loaded.take() {
                        drop(loaded.send(Ok(description)));
                    }
                }
                FromHost::Failed { call: 0, missing, error } => {
                    if let Some(loaded) = loaded.take() {
                        drop(loaded.send(Err((missing, error))));
                    }
                }
                FromHost::Failed { call, error, .. } => worker.answer(call, Err(error)),
                FromHost::Rows { call, rows } => worker.answer(call, Ok(rows)),
                FromHost::Beat { n, lag } => {
                    let ago = Duration::try_from_secs_f64(lag).unwrap_or_default();
                    worker.pulse.send_modify(|pulse| {
                        pulse.beats += 1;
                        pulse.turned = now.checked_sub(ago).unwrap_or(now);
                    });
                    if ago > STANDSTILL {
                        warn!(worker = %worker.name, beat = n, blocked_s = lag, "its event loop is blocked");
                    }
                }
                FromHost::Ask { call, rollout, op } => worker.asked(call, rollout.as_deref(), op).await,
                FromHost::Phase { rollout, phase } => {
                    worker.tell(&rollout, Event::Phase(phase)).await;
                }
                FromHost::Done { rollout, report, error } => {
                    let result = match (report, error) {
                        (_, Some(error)) => Err(error),
                        (Some(report), None) => Ok(report),
                        (None, None) => Ok(Report { reward: f64::NAN, ..Report::default() }),
                    };
                    worker.tell(&rollout, Event::Done(result)).await;
                }
            }
        }
        Ok(())
    }

    /// Questions about text are answered here; those to the weights by the rollout that asks.
    async fn asked(&self, call: u64, rollout: Option<&str>, op: Op) {
        if let Some(answer) = self.voice.about_text(&op) {
            self.send(&ToHost::Answer { call, ok: Some(answer), error: None }).await;
            return;
        }
        let known = match rollout {
            Some(rollout) => self.tell(rollout, Event::Ask(call, op)).await,
            None => false,
        };
        if !known {
            let error = match rollout {
                Some(rollout) => format!("the rollout {rollout} is over"),
                None => "the policy can be asked only while a rollout is played".to_owned(),
            };
            self.send(&ToHost::Answer { call, ok: None, error: Some(error) }).await;
        }
    }

    async fn tell(&self, rollout: &str, event: Event) -> bool {
        let sender = lock(&self.rollouts).get(rollout).cloned();
        match sender {
            Some(sender) => sender.send(event).await.is_ok(),
            None => {
                debug!(worker = %self.name, rollout, "said something that nobody waits for");
                false
            }
        }
    }

    fn answer(&self, call: u64, result: Rows) {
        if let Some(asker) = lock(&self.calls).remove(&call) {
            drop(asker.send(result));
        }
    }

    async fn keep_pulse(worker: std::sync::Weak<Self>) {
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for n in 0.. {
            beats.tick().await;
            let Some(worker) = worker.upgrade() else { return };
            if worker.is_dead() {
                return;
            }
            let silent = worker.pulse.borrow().heard.elapsed();
            if silent > SILENCE {
                worker.kill(format!("it gave no sign of life for {} s", silent.as_secs()));
                return;
            }
            worker.hint(&ToHost::Beat { n });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
