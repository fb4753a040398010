//! What rewards may ask of the service: how many questions at a time, how many in a step, and how often they did.
//!
//! A question that finds the step's budget used up waits for the next step, so that work ahead of the trainer slows
//! down and nothing that was sampled is lost. A budget that is too small for a single batch would let everybody wait
//! for a step that cannot come: after [`Limits::patience`] the reward is missing, with that cause.

use crate::frozen::FrozenSamplers;
use crate::kit::Outlet;
use crate::names;
use crate::shadow_trainer::{Loan, Measure, Meter, MeterReading};
use minds_core::backend::Service;
use minds_core::reward::{Metrics, Missing};
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, timeout};
use tracing::warn;

/// Bounds on the rewards' questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Questions under way at a time.
    pub concurrency: NonZeroUsize,
    /// Most questions sent between two steps; no bound if there is none.
    pub per_step: Option<NonZeroU64>,
    /// How long a question waits for the next step once the budget is used up. Keep it under the rewards' own time
    /// limit, which would hide the cause.
    pub patience: Duration,
}

impl Default for Limits {
    /// No budget.
    fn default() -> Self {
        let concurrency = const { NonZeroUsize::new(128).expect("128 is not 0") };
        Self { concurrency, per_step: None, patience: Duration::from_secs(300) }
    }
}

/// What all that ask share.
pub struct Queries {
    limits: Limits,
    room: Semaphore,
    /// Questions sent since the last step.
    spent: watch::Sender<u64>,
    sent: AtomicU64,
    remembered: AtomicU64,
    waited_nanos: AtomicU64,
    /// Gradient steps measured.
    pub(crate) shifts: Arc<Meter>,
    /// The lane to the shadow trainer, once there is one.
    pub(crate) shadow: OnceLock<Outlet<Measure>>,
    /// The lane on which adapters are borrowed from it.
    pub(crate) loans: OnceLock<Outlet<Loan>>,
    /// Weights beside the policy, once there is a service that has them.
    pub(crate) frozen: OnceLock<Arc<FrozenSamplers>>,
}

impl Default for Queries {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Queries {
    /// Nothing asked yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            room: Semaphore::new(limits.concurrency.get().min(Semaphore::MAX_PERMITS)),
            limits,
            spent: watch::Sender::new(0),
            sent: AtomicU64::new(0),
            remembered: AtomicU64::new(0),
            waited_nanos: AtomicU64::new(0),
            shifts: Arc::default(),
            shadow: OnceLock::new(),
            loans: OnceLock::new(),
            frozen: OnceLock::new(),
        }
    }

    /// Rewards may ask weights of this service beside the policy.
    #[must_use]
    pub fn with_service(self, service: Arc<dyn Service>) -> Self {
        Self { frozen: OnceLock::from(Arc::new(FrozenSamplers::new(service))), ..self }
    }

    /// Questions sent to the service.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Questions answered from memory, or by joining one under way.
    #[must_use]
    pub fn remembered(&self) -> u64 {
        self.remembered.load(Relaxed)
    }

    /// Gradient steps measured.
    #[must_use]
    pub fn shifts(&self) -> u64 {
        self.shifts.read().done
    }

    /// Books of its own over the same shadow trainer, for those who ask beside the training and not at its cost.
    pub(crate) fn beside(&self) -> Self {
        Self {
            shadow: self.shadow.clone(),
            loans: self.loans.clone(),
            frozen: self.frozen.clone(),
            shifts: self.shifts.clone(),
            ..Self::new(Limits { per_step: None, ..self.limits })
        }
    }

    pub(crate) fn note_remembered(&self) {
        self.remembered.fetch_add(1, Relaxed);
    }

    /// The right to send one question; keep it until the answer is there.
    pub(crate) async fn admit(&self) -> Result<SemaphorePermit<'_>, Missing> {
        let asked = Instant::now();
        self.spend().await?;
        let permit = self.room.acquire().await.map_err(|_| Missing::Service("the run has ended".into()))?;
        self.waited_nanos.fetch_add(asked.elapsed().as_nanos() as u64, Relaxed);
        self.sent.fetch_add(1, Relaxed);
        Ok(permit)
    }

    async fn spend(&self) -> Result<(), Missing> {
        let most = self.limits.per_step.map_or(u64::MAX, NonZeroU64::get);
        let take = || {
            self.spent.send_if_modified(|spent| {
                let free = *spent < most;
                *spent += u64::from(free);
                free
            })
        };
        if take() {
            return Ok(());
        }
        warn!(most, "the step's log-prob queries are used up: rewards wait for the next step");
        let mut spent = self.spent.subscribe();
        let waiting = async {
            while !take() {
                // The sender lives in `self`, so the wait cannot fail.
                drop(spent.wait_for(|spent| *spent < most).await);
            }
        };
        timeout(self.limits.patience, waiting).await.map_err(|_| Missing::Budget(most))
    }

    /// Begins the next step's budget.
    pub(crate) fn next_step(&self) {
        self.spent.send_replace(0);
    }

    /// All counters at this moment.
    #[must_use]
    pub fn read(&self) -> Reading {
        Reading {
            sent: self.sent(),
            remembered: self.remembered(),
            waited_s: self.waited_nanos.load(Relaxed) as f64 * 1e-9,
            shifts: self.shifts.read(),
        }
    }

    /// The numbers since an earlier reading.
    pub(crate) fn report(&self, now: &Reading, earlier: &Reading, out: &mut Metrics) {
        let mut put = |name: &str, value: f64| {
            out.insert(name.into(), value);
        };
        put(names::QUERIES_USED, (now.sent - earlier.sent) as f64);
        if let Some(budget) = self.limits.per_step {
            put(names::QUERIES_BUDGET, budget.get() as f64);
        }
        put(names::QUERIES_REMEMBERED, (now.remembered - earlier.remembered) as f64);
        put(names::QUERIES_WAIT, now.waited_s - earlier.waited_s);
        if self.shadow.get().is_some() {
            now.shifts.report(&earlier.shifts, out);
        }
    }
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Questions sent to the service.
    pub sent: u64,
    /// Questions answered from memory, or by joining one under way.
    pub remembered: u64,
    /// Seconds that questions have waited for room or for the next step.
    pub waited_s: f64,
    /// Gradient steps measured.
    pub shifts: MeterReading,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(concurrency: usize, per_step: u64) -> Limits {
        Limits {
            concurrency: NonZeroUsize::new(concurrency).expect("not 0"),
            per_step: NonZeroU64::new(per_step),
            patience: Duration::from_secs(60),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_are_under_way_and_no_more() {
        let queries = Queries::new(limits(2, 0));
        let begun = Instant::now();
        futures::future::join_all((0..10).map(|_| async {
            let permit = queries.admit().await.expect("no budget");
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(permit);
        }))
        .await;
        assert_eq!(begun.elapsed().as_secs(), 5, "ten of a second, two at a time");
        // 2 × (0 + 1 + 2 + 3 + 4) seconds.
        assert!((queries.read().waited_s - 20.0).abs() < 0.1);
    }

    #[test]
    fn an_evaluation_uses_the_shadow_trainer_of_the_training() {
        let queries = Queries::default();
        assert!(queries.shadow.set(crate::kit::lane("measures", NonZeroUsize::MIN).0).is_ok());
        assert!(queries.loans.set(crate::kit::lane("loans", NonZeroUsize::MIN).0).is_ok());
        let beside = queries.beside();
        assert!(beside.shadow.get().is_some() && beside.loans.get().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_finds_the_budget_used_up_waits_for_the_next_step() {
        let queries = Queries::new(limits(8, 3));
        let all = futures::future::join_all((0..5).map(|_| async { queries.admit().await.map(drop) }));
        let (answers, ()) = tokio::join!(all, async {
            tokio::time::sleep(Duration::from_secs(50)).await;
            assert_eq!(queries.sent(), 3);
            queries.next_step();
        });
        assert_eq!(answers, vec![Ok(()); 5]);
        assert_eq!((queries.sent(), *queries.spent.borrow()), (5, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_never_comes_is_a_cause_by_name() {
        let queries = Queries::new(limits(8, 1));
        queries.admit().await.map(drop).expect("the first");
        let begun = Instant::now();
        let missing = queries.admit().await.map(drop).unwrap_err();
        assert_eq!((begun.elapsed().as_secs(), &missing), (60, &Missing::Budget(1)));
        assert!(missing.to_string().contains("scorer.queries_per_step") && !missing.is_retryable());
        assert!(!missing.is_poison(), "it is not the episode's fault");
    }
}
