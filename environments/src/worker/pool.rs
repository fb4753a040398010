//! The processes of one environment.
//!
//! A process that ends is replaced, after a pause that doubles, until too many have ended in too short a time; then the
//! environment fails with the last one's error. Every wait for a process ends with one or with that error. All
//! processes end when the pool is dropped.

use super::endpoint::ModelEndpoint;
use super::message::EnvDescription;
use super::model_profile::ModelProfile;
use super::options::PythonOptions;
use super::setup::WorkerSetup;
use super::worker_files::WorkerFiles;
use super::worker_process::{WorkerLaunch, WorkerProcess, WorkerStartError};
use crate::error::EnvError;
use crate::native;
use futures::future::try_join_all;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{error, warn};

/// Limit of processes that start on demand, unless the config sets the number.
const MOST_UNASKED: usize = 4;
/// More process exits than this …
const MOST_ENDS: usize = 5;
/// … within this time, in one slot, are too many.
const WITHIN: Duration = Duration::from_secs(600);
/// Pause before the first replacement.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Why a process is rejected.
const OTHER_ROWS: &str = "its rows are not the same whenever it is loaded, so an item would be another task in each \
                          process. They depend on what cannot be set: random.SystemRandom, secrets, uuid4, \
                          os.urandom, the clock, numpy's default_rng imported by its name. Give `load_environment` a \
                          seed for them, or set `workers = 1`";

/// All processes of an environment, on threads of their own.
pub(super) struct WorkerPool {
    shared: Arc<PoolShared>,
    /// Taken when the pool is dropped.
    runtime: Option<Runtime>,
    /// The worker's files. Not part of the shared state, which is dropped at a later time.
    _files: WorkerFiles,
}

struct PoolShared {
    options: PythonOptions,
    setup: WorkerSetup,
    profile: Arc<ModelProfile>,
    endpoint: Arc<ModelEndpoint>,
    slots: Vec<WorkerSlot>,
    /// Digest of the rows of the first process that was loaded.
    digest: OnceLock<String>,
    /// Changes whenever a slot changes.
    changed: watch::Sender<u64>,
}

/// A slot for one process at a time.
struct WorkerSlot {
    state: Mutex<SlotState>,
    /// Wakes an empty slot that is needed.
    wanted: Notify,
}

#[derive(Clone)]
enum SlotState {
    Empty,
    Starting,
    Alive(Arc<WorkerProcess>),
    GivenUp(Arc<str>),
}

impl WorkerSlot {
    fn state(&self) -> SlotState {
        self.state.lock().clone()
    }
}

impl WorkerPool {
    /// Starts as many processes as the config asks for, or the first one, and waits for them.
    pub(super) fn start(
        options: PythonOptions,
        profile: ModelProfile,
    ) -> Result<(Self, EnvDescription), EnvError> {
        let failed = |error: std::io::Error| EnvError::WorkerSetup(error.to_string());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("python")
            .enable_all()
            .build()
            .map_err(failed)?;
        let (setup, files) = WorkerSetup::new(&options)?;
        let profile = Arc::new(profile);
        let endpoint = runtime.block_on(ModelEndpoint::open(profile.clone())).map_err(failed)?;
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let count = options.workers.map_or(cores.min(MOST_UNASKED), NonZeroUsize::get);
        let slot = |_| WorkerSlot { state: Mutex::new(SlotState::Empty), wanted: Notify::new() };
        let slots = (0..count).map(slot).collect();
        let (changed, _) = watch::channel(0);
        let shared = Arc::new(PoolShared {
            options,
            setup,
            profile,
            endpoint,
            slots,
            digest: OnceLock::new(),
            changed,
        });
        let at_once = shared.options.workers.map_or(1, NonZeroUsize::get);
        let started = runtime.block_on(try_join_all((0..at_once).map(|slot| shared.launch(slot))));
        let mut started = started.map_err(|error| match error {
            WorkerStartError::NoModule => {
                native::unknown(&shared.options.id, Some(shared.setup.interpreter()))
            }
            WorkerStartError::Failed(why) => EnvError::Python { id: shared.options.id.clone(), why },
        })?;
        let description = started[0].1.clone();
        let mut started = started.drain(..).map(|(worker, _)| worker);
        for slot in 0..count {
            let worker = started.next();
            if let Some(worker) = &worker {
                shared.set(slot, SlotState::Alive(worker.clone()));
            }
            runtime.spawn(PoolShared::keep(shared.clone(), slot, worker));
        }
        drop(started);
        Ok((Self { shared, runtime: Some(runtime), _files: files }, description))
    }

    /// All rows for display, from the first process.
    pub(super) fn rows(&self, description: &EnvDescription) -> Result<Vec<serde_json::Value>, EnvError> {
        const AT_ONCE: u64 = 256;
        let failed = |why| EnvError::Python { id: self.shared.options.id.clone(), why };
        let runtime = self.runtime.as_ref().expect("it is taken only by the drop");
        let fetch = async {
            let worker = self.least_busy().await.map_err(failed)?;
            let mut rows = Vec::new();
            while (rows.len() as u64) < description.items {
                let some = worker.rows(rows.len() as u64, AT_ONCE).await.map_err(failed)?;
                if some.is_empty() {
                    break; // it makes its tasks by chance
                }
                rows.extend(some);
            }
            let items = description.items;
            match rows.len() as u64 {
                0 => Ok(rows),
                told if told == items => Ok(rows),
                told => Err(failed(format!("it has {items} items and {told} rows"))),
            }
        };
        let limit = self.shared.options.load_timeout;
        match runtime.block_on(async { tokio::time::timeout(limit, fetch).await }) {
            Ok(rows) => rows,
            Err(_) => Err(failed(format!("its rows did not come within {} s", limit.as_secs()))),
        }
    }

    /// Messages of the first prompt of an item. Blocks.
    pub(super) fn first_prompt(&self, item: u64) -> Result<Vec<serde_json::Value>, String> {
        let runtime = self.runtime.as_ref().expect("it is taken only by the drop");
        let limit = self.shared.options.rollout_timeout;
        let prompt = async { self.least_busy().await?.first_prompt(item).await };
        let prompt = runtime.block_on(async { tokio::time::timeout(limit, prompt).await });
        prompt.unwrap_or_else(|_| Err(format!("its prompt did not arrive within {} s", limit.as_secs())))
    }

    /// The least busy process. Starts another one if there is an empty slot and all are busy enough.
    ///
    /// # Errors
    /// All have failed; the error is the cause.
    pub(super) async fn least_busy(&self) -> Result<Arc<WorkerProcess>, String> {
        let mut changed = self.shared.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let states: Vec<SlotState> = self.shared.slots.iter().map(WorkerSlot::state).collect();
            let alive = states.iter().filter_map(|state| match state {
                SlotState::Alive(worker) if !worker.is_ending() => Some(worker),
                _ => None,
            });
            let least = alive.min_by_key(|worker| worker.assigned.load(Relaxed));
            let is_full = |worker: &Arc<WorkerProcess>| {
                worker.assigned.load(Relaxed) >= self.shared.options.rollouts_per_worker.get()
            };
            if least.is_none_or(is_full) {
                let empty = states.iter().position(|state| matches!(state, SlotState::Empty));
                if let Some(empty) = empty {
                    self.shared.slots[empty].wanted.notify_one();
                }
            }
            if let Some(least) = least {
                return Ok(least.clone());
            }
            let given_up = states.iter().map(|state| match state {
                SlotState::GivenUp(why) => Some(why.to_string()),
                _ => None,
            });
            if let Some(causes) = given_up.collect::<Option<Vec<_>>>() {
                return Err(causes.into_iter().next().unwrap_or_default());
            }
            if changed.changed().await.is_err() {
                return Err("the environment is being closed".into());
            }
        }
    }

    pub(super) fn endpoint(&self) -> &Arc<ModelEndpoint> {
        &self.shared.endpoint
    }

    pub(super) fn options(&self) -> &PythonOptions {
        &self.shared.options
    }

    pub(super) fn profile(&self) -> &ModelProfile {
        &self.shared.profile
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        // The keepers hold the workers. Dropping the runtime drops everything that holds a process's input open, and
        // the process exits at the end of its input.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl PoolShared {
    async fn launch(&self, slot: usize) -> Result<(Arc<WorkerProcess>, EnvDescription), WorkerStartError> {
        let launch = WorkerLaunch {
            setup: &self.setup,
            args: &self.options.args,
            profile: self.profile.clone(),
            permits: self.options.rollouts_per_worker.get(),
            seed: self.options.seed,
            limit: self.options.load_timeout,
        };
        let name = self.options.id.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let (worker, description) = WorkerProcess::start(format!("{name}/{slot}").into(), &launch).await?;
        if *self.digest.get_or_init(|| description.digest.clone()) != description.digest {
            worker.kill("its rows are not those of the first process".into());
            return Err(WorkerStartError::Failed(OTHER_ROWS.into()));
        }
        Ok((worker, description))
    }

    fn set(&self, slot: usize, state: SlotState) {
        *self.slots[slot].state.lock() = state;
        self.changed.send_modify(|changes| *changes += 1);
    }

    /// Keeps a slot filled, from the first time that it is needed.
    async fn keep(shared: Arc<Self>, slot: usize, first: Option<Arc<WorkerProcess>>) {
        let mut budget = RestartBudget::default();
        let mut next = first;
        loop {
            let cause = match next.take() {
                Some(worker) => {
                    shared.set(slot, SlotState::Alive(worker.clone()));
                    let cause = worker.exit_cause().await;
                    warn!("{cause}");
                    cause
                }
                None => {
                    if matches!(shared.slots[slot].state(), SlotState::Empty) {
                        shared.slots[slot].wanted.notified().await;
                    }
                    shared.set(slot, SlotState::Starting);
                    match shared.launch(slot).await {
                        Ok((worker, _)) => {
                            next = Some(worker);
                            continue;
                        }
                        Err(WorkerStartError::NoModule) => "its module is gone".to_owned(),
                        Err(WorkerStartError::Failed(why)) => why,
                    }
                }
            };
            shared.options.worker_exits.fetch_add(1, Relaxed);
            shared.set(slot, SlotState::Starting);
            let Some(pause) = budget.spend(Instant::now()) else {
                error!(
                    slot,
                    "{MOST_ENDS} processes have ended within {} s: no more are started",
                    WITHIN.as_secs()
                );
                shared.set(slot, SlotState::GivenUp(cause.into()));
                return;
            };
            tokio::time::sleep(pause).await;
        }
    }
}

/// Recent exits of a slot, which limit its restarts.
#[derive(Default)]
struct RestartBudget {
    ends: VecDeque<Instant>,
}

impl RestartBudget {
    /// The pause before a replacement; `None` if the budget is spent.
    fn spend(&mut self, now: Instant) -> Option<Duration> {
        self.ends.retain(|end| now.duration_since(*end) < WITHIN);
        self.ends.push_back(now);
        (self.ends.len() <= MOST_ENDS).then(|| FIRST_PAUSE * (1 << (self.ends.len() - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ends_are_borne_as_long_as_they_are_few_in_a_while() {
        let mut budget = RestartBudget::default();
        let pauses: Vec<_> = (0..6).map(|_| budget.spend(Instant::now()).map(|p| p.as_millis())).collect();
        assert_eq!(pauses, [Some(200), Some(400), Some(800), Some(1600), Some(3200), None]);
        tokio::time::advance(WITHIN).await;
        assert_eq!(budget.spend(Instant::now()), Some(FIRST_PAUSE));
    }
}
