//! The processes of one environment.
//!
//! A process that ends is replaced, after a pause that doubles, until too many have ended in too short a time; then the
//! environment is given up with the last one's words. Every wait for a process ends with one or with those words. All
//! processes are told to go when the crew is dropped.

use super::endpoint::Endpoint;
use super::folder::HostFolder;
use super::host::Host;
use super::message::Description;
use super::options::PythonOptions;
use super::voice::Voice;
use super::worker::{Launch, StartError, Worker};
use crate::error::EnvError;
use crate::registry;
use futures::future::try_join_all;
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{error, warn};

/// Most processes that are started without being asked for by number.
const MOST_UNASKED: usize = 4;
/// So many ends …
const MOST_ENDS: usize = 5;
/// … within this time, for each place, are too many.
const WITHIN: Duration = Duration::from_secs(600);
/// Pause before the first replacement.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Why a process is not taken.
const OTHER_ROWS: &str = "its rows are not the same whenever it is loaded, so an item would be another task in each \
                          process. They depend on what cannot be set: random.SystemRandom, secrets, uuid4, \
                          os.urandom, the clock, numpy's default_rng imported by its name. Give `load_environment` a \
                          seed for them, or set `workers = 1`";

/// All processes of an environment, on threads of their own.
pub(super) struct Crew {
    shared: Arc<Shared>,
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
    /// The host's files. Not with what its processes share: that ends in its own time.
    _files: HostFolder,
}

struct Shared {
    options: PythonOptions,
    host: Host,
    voice: Arc<Voice>,
    endpoint: Arc<Endpoint>,
    places: Vec<Place>,
    /// Of the rows of the first process that was loaded.
    digest: OnceLock<String>,
    /// Changes whenever a place does.
    changed: watch::Sender<u64>,
}

/// Where one process works at a time.
struct Place {
    state: Mutex<State>,
    /// Tells an empty place that it is needed.
    wanted: Notify,
}

#[derive(Clone)]
enum State {
    Empty,
    Starting,
    Alive(Arc<Worker>),
    GivenUp(Arc<str>),
}

impl Place {
    fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Crew {
    /// Starts the processes that were asked for by number, or the first one, and waits for them.
    pub(super) fn start(options: PythonOptions, voice: Voice) -> Result<(Self, Description), EnvError> {
        let failed = |error: std::io::Error| EnvError::Host(error.to_string());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("python")
            .enable_all()
            .build()
            .map_err(failed)?;
        let (host, files) = Host::new(&options)?;
        let voice = Arc::new(voice);
        let endpoint = runtime.block_on(Endpoint::open(voice.clone())).map_err(failed)?;
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let count = options.workers.map_or(cores.min(MOST_UNASKED), NonZeroUsize::get);
        let place = |_| Place { state: Mutex::new(State::Empty), wanted: Notify::new() };
        let places = (0..count).map(place).collect();
        let (changed, _) = watch::channel(0);
        let shared =
            Arc::new(Shared { options, host, voice, endpoint, places, digest: OnceLock::new(), changed });
        let at_once = shared.options.workers.map_or(1, NonZeroUsize::get);
        let started = runtime.block_on(try_join_all((0..at_once).map(|place| shared.launch(place))));
        let mut started = started.map_err(|error| match error {
            StartError::NoModule => registry::unknown(&shared.options.id, Some(shared.host.interpreter())),
            StartError::Failed(why) => EnvError::Python { id: shared.options.id.clone(), why },
        })?;
        let description = started[0].1.clone();
        let mut started = started.drain(..).map(|(worker, _)| worker);
        for place in 0..count {
            let worker = started.next();
            if let Some(worker) = &worker {
                shared.set(place, State::Alive(worker.clone()));
            }
            runtime.spawn(Shared::keep(shared.clone(), place, worker));
        }
        drop(started);
        Ok((Self { shared, runtime: Some(runtime), _files: files }, description))
    }

    /// All rows as people are shown them, from the first process.
    pub(super) fn rows(&self, description: &Description) -> Result<Vec<serde_json::Value>, EnvError> {
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

    /// The process with the least to do. Starts another one if there is a place and all have enough to do.
    ///
    /// # Errors
    /// All have been given up; why.
    pub(super) async fn least_busy(&self) -> Result<Arc<Worker>, String> {
        let mut changed = self.shared.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let states: Vec<State> = self.shared.places.iter().map(Place::state).collect();
            let alive = states.iter().filter_map(|state| match state {
                State::Alive(worker) if !worker.is_dead() => Some(worker),
                _ => None,
            });
            let least = alive.min_by_key(|worker| worker.assigned.load(Relaxed));
            let is_full = |worker: &Arc<Worker>| {
                worker.assigned.load(Relaxed) >= self.shared.options.rollouts_per_worker.get()
            };
            if least.is_none_or(is_full) {
                let empty = states.iter().position(|state| matches!(state, State::Empty));
                if let Some(empty) = empty {
                    self.shared.places[empty].wanted.notify_one();
                }
            }
            if let Some(least) = least {
                return Ok(least.clone());
            }
            let given_up = states.iter().map(|state| match state {
                State::GivenUp(why) => Some(why.to_string()),
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

    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.shared.endpoint
    }

    pub(super) fn options(&self) -> &PythonOptions {
        &self.shared.options
    }

    pub(super) fn voice(&self) -> &Voice {
        &self.shared.voice
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        // The keepers hold the workers; with the runtime goes everything that holds a process's input open, and the
        // end of its input tells it to go.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    async fn launch(&self, place: usize) -> Result<(Arc<Worker>, Description), StartError> {
        let launch = Launch {
            host: &self.host,
            args: &self.options.args,
            voice: self.voice.clone(),
            slots: self.options.rollouts_per_worker.get(),
            seed: self.options.seed,
            limit: self.options.load_timeout,
        };
        let name = self.options.id.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let (worker, description) = Worker::start(format!("{name}/{place}").into(), &launch).await?;
        if *self.digest.get_or_init(|| description.digest.clone()) != description.digest {
            worker.kill("its rows are not those of the first process".into());
            return Err(StartError::Failed(OTHER_ROWS.into()));
        }
        Ok((worker, description))
    }

    fn set(&self, place: usize, state: State) {
        *self.places[place].state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.send_modify(|changes| *changes += 1);
    }

    /// Keeps a place filled, from the first time on which it is wanted.
    async fn keep(shared: Arc<Self>, place: usize, first: Option<Arc<Worker>>) {
        let mut budget = Budget::default();
        let mut next = first;
        loop {
            let cause = match next.take() {
                Some(worker) => {
                    shared.set(place, State::Alive(worker.clone()));
                    let cause = worker.cause_of_death().await;
                    warn!("{cause}");
                    cause
                }
                None => {
                    if matches!(shared.places[place].state(), State::Empty) {
                        shared.places[place].wanted.notified().await;
                    }
                    shared.set(place, State::Starting);
                    match shared.launch(place).await {
                        Ok((worker, _)) => {
                            next = Some(worker);
                            continue;
                        }
                        Err(StartError::NoModule) => "its module is gone".to_owned(),
                        Err(StartError::Failed(why)) => why,
                    }
                }
            };
            shared.options.ends.fetch_add(1, Relaxed);
            shared.set(place, State::Starting);
            let Some(pause) = budget.spend(Instant::now()) else {
                error!(place, "{MOST_ENDS} processes have ended within {} s: given up", WITHIN.as_secs());
                shared.set(place, State::GivenUp(cause.into()));
                return;
            };
            tokio::time::sleep(pause).await;
        }
    }
}

/// How many more ends are borne.
#[derive(Default)]
struct Budget {
    ends: VecDeque<Instant>,
}

impl Budget {
    /// The pause before a replacement; `None` if there is none.
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
        let mut budget = Budget::default();
        let pauses: Vec<_> = (0..6).map(|_| budget.spend(Instant::now()).map(|p| p.as_millis())).collect();
        assert_eq!(pauses, [Some(200), Some(400), Some(800), Some(1600), Some(3200), None]);
        tokio::time::advance(WITHIN).await;
        assert_eq!(budget.spend(Instant::now()), Some(FIRST_PAUSE));
    }
}
