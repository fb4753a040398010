//! Limits of the rewards' queries: how many at a time and how many per step; and their counts.
//!
//! A query that finds the step's budget used up waits for the next step, so that work ahead of the trainer slows
//! down and no sample is lost. With a budget too small for a single batch, all queries would wait for a step that
//! cannot come: after [`QueryLimits::wait_limit`] in which nothing was sampled, trained or exported, the reward fails
//! with that cause. An outage keeps such requests under way, so it fails no reward here.

use super::frozen::FrozenSamplers;
use super::shadow_request::{AdapterLeaseRequest, LogprobDeltaRequest};
use crate::mailbox::MailboxSender;
use crate::telemetry::activity::Activity;
use crate::telemetry::shadow_meter::{ShadowMeter, ShadowMeterReading};
use minds_core::reward::RewardError;
use minds_core::service::Service;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, sleep};
use tracing::warn;

/// Bounds on the rewards' queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryLimits {
    /// Queries in flight at a time.
    pub concurrency: NonZeroUsize,
    /// Most queries sent between two steps; `None` for no bound.
    pub per_step: Option<NonZeroU64>,
    /// How long a query waits for the next step while nothing that leads to one is under way. Keep it under the rewards'
    /// own time limit, which would hide the cause.
    pub wait_limit: Duration,
}

impl Default for QueryLimits {
    /// 128 queries at a time, no budget per step, and a wait of 300 s.
    fn default() -> Self {
        let concurrency = const { NonZeroUsize::new(128).expect("128 is not 0") };
        Self { concurrency, per_step: None, wait_limit: Duration::from_secs(300) }
    }
}

/// Limits and counts that all oracles share.
pub struct QueryBudget {
    limits: QueryLimits,
    permits: Semaphore,
    /// Queries sent since the last step.
    spent: watch::Sender<u64>,
    sent: AtomicU64,
    remembered: AtomicU64,
    waited_nanos: AtomicU64,
    /// Counts and times of measured gradient steps.
    pub(crate) deltas: Arc<ShadowMeter>,
    /// The mailbox to the shadow trainer, once there is one.
    pub(crate) shadow: OnceLock<MailboxSender<LogprobDeltaRequest>>,
    /// The mailbox for adapter leases, once there is a shadow trainer.
    pub(crate) leases: OnceLock<MailboxSender<AdapterLeaseRequest>>,
    /// Frozen weights, once there is a service that has them.
    pub(crate) frozen: OnceLock<Arc<FrozenSamplers>>,
    /// What the pipeline is doing, once there is one.
    pub(crate) activity: OnceLock<Activity>,
}

/// How often a query that waits for the next step looks whether one can still come.
const WAIT_TICK: Duration = Duration::from_secs(1);

impl Default for QueryBudget {
    fn default() -> Self {
        Self::new(QueryLimits::default())
    }
}

impl QueryBudget {
    /// A budget with no queries sent.
    #[must_use]
    pub fn new(limits: QueryLimits) -> Self {
        Self {
            permits: Semaphore::new(limits.concurrency.get().min(Semaphore::MAX_PERMITS)),
            limits,
            spent: watch::Sender::new(0),
            sent: AtomicU64::new(0),
            remembered: AtomicU64::new(0),
            waited_nanos: AtomicU64::new(0),
            deltas: Arc::default(),
            shadow: OnceLock::new(),
            leases: OnceLock::new(),
            frozen: OnceLock::new(),
            activity: OnceLock::new(),
        }
    }

    /// Lets rewards query frozen weights of this service.
    #[must_use]
    pub fn with_service(self, service: Arc<dyn Service>) -> Self {
        Self { frozen: OnceLock::from(Arc::new(FrozenSamplers::new(service))), ..self }
    }

    /// Queries sent to the service.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Queries answered from memory, or by joining one in flight.
    #[must_use]
    pub fn remembered(&self) -> u64 {
        self.remembered.load(Relaxed)
    }

    /// Number of gradient steps measured so far.
    #[must_use]
    pub fn deltas(&self) -> u64 {
        self.deltas.read().done
    }

    /// Separate limits and counts over the same shadow trainer, for queries that must not use up the training budget.
    pub(crate) fn beside(&self) -> Self {
        Self {
            shadow: self.shadow.clone(),
            leases: self.leases.clone(),
            frozen: self.frozen.clone(),
            deltas: self.deltas.clone(),
            ..Self::new(QueryLimits { per_step: None, ..self.limits })
        }
    }

    pub(crate) fn note_remembered(&self) {
        self.remembered.fetch_add(1, Relaxed);
    }

    /// A permit to send one query; keep it until the response arrives.
    pub(crate) async fn admit(&self) -> Result<SemaphorePermit<'_>, RewardError> {
        let asked = Instant::now();
        self.spend().await?;
        let permit =
            self.permits.acquire().await.map_err(|_| RewardError::Service("the run has ended".into()))?;
        self.waited_nanos.fetch_add(asked.elapsed().as_nanos() as u64, Relaxed);
        self.sent.fetch_add(1, Relaxed);
        Ok(permit)
    }

    async fn spend(&self) -> Result<(), RewardError> {
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
        warn!(most, "logprob query budget of this step used up: rewards wait for the next step");
        let mut spent = self.spent.subscribe();
        let waiting = async {
            while !take() {
                // The sender lives in `self`, so the wait cannot fail.
                drop(spent.wait_for(|spent| *spent < most).await);
            }
        };
        tokio::select! {
            () = waiting => Ok(()),
            () = self.deadlock() => Err(RewardError::Budget(most)),
        }
    }

    /// Ends once nothing that leads to a step has been under way for the wait limit, all told.
    async fn deadlock(&self) {
        let mut idle = Duration::ZERO;
        while idle < self.limits.wait_limit {
            sleep(WAIT_TICK).await;
            let busy = self.activity.get().is_some_and(|activity| activity.now().lead_to_a_step());
            if !busy {
                idle += WAIT_TICK;
            }
        }
    }

    /// Begins the next step's budget.
    pub(crate) fn next_step(&self) {
        self.spent.send_replace(0);
    }

    /// All counters at this moment, for a later difference.
    #[must_use]
    pub fn read(&self) -> QueryCounts {
        QueryCounts {
            sent: self.sent(),
            remembered: self.remembered(),
            waited_s: self.waited_nanos.load(Relaxed) as f64 * 1e-9,
            deltas: self.deltas.read(),
        }
    }

    /// Most queries per step.
    pub(crate) fn per_step(&self) -> Option<u64> {
        self.limits.per_step.map(NonZeroU64::get)
    }

    /// Whether gradient steps can be measured.
    pub(crate) fn has_shadow(&self) -> bool {
        self.shadow.get().is_some()
    }
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueryCounts {
    /// Queries sent to the service.
    pub sent: u64,
    /// Queries answered from memory, or by joining one in flight.
    pub remembered: u64,
    /// Seconds that queries have waited for permits or for the next step.
    pub waited_s: f64,
    /// Counts and times of measured gradient steps.
    pub deltas: ShadowMeterReading,
}

impl QueryCounts {
    /// The counts since an earlier reading.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            sent: self.sent - earlier.sent,
            remembered: self.remembered - earlier.remembered,
            waited_s: self.waited_s - earlier.waited_s,
            deltas: self.deltas.since(&earlier.deltas),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::activity::ActivityKind;

    fn limits(concurrency: usize, per_step: u64) -> QueryLimits {
        QueryLimits {
            concurrency: NonZeroUsize::new(concurrency).expect("not 0"),
            per_step: NonZeroU64::new(per_step),
            wait_limit: Duration::from_secs(60),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_are_under_way_and_no_more() {
        let queries = QueryBudget::new(limits(2, 0));
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
        let queries = QueryBudget::default();
        assert!(queries.shadow.set(crate::mailbox::mailbox("measures", NonZeroUsize::MIN).0).is_ok());
        assert!(queries.leases.set(crate::mailbox::mailbox("adapter_leases", NonZeroUsize::MIN).0).is_ok());
        let beside = queries.beside();
        assert!(beside.shadow.get().is_some() && beside.leases.get().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_finds_the_budget_used_up_waits_for_the_next_step() {
        let queries = QueryBudget::new(limits(8, 3));
        let all = futures::future::join_all((0..5).map(|_| async { queries.admit().await.map(drop) }));
        let (answers, ()) = tokio::join!(all, async {
            tokio::time::sleep(Duration::from_secs(50)).await;
            assert_eq!(queries.sent(), 3);
            queries.next_step();
        });
        assert_eq!(answers, vec![Ok(()); 5]);
        assert_eq!((queries.sent(), *queries.spent.borrow()), (5, 2));
    }

    /// As in an outage: requests are under way for as long as the service is waited for.
    #[tokio::test(start_paused = true)]
    async fn the_wait_limit_does_not_count_while_requests_that_lead_to_a_step_are_under_way() {
        let queries = QueryBudget::new(limits(8, 1));
        let activity = Activity::default();
        assert!(queries.activity.set(activity.clone()).is_ok());
        queries.admit().await.map(drop).expect("the first");
        let begun = Instant::now();
        let outage = async {
            let training = activity.enter(ActivityKind::Training);
            sleep(Duration::from_secs(3600)).await;
            drop(training);
        };
        let (missing, ()) = tokio::join!(queries.admit(), outage);
        assert_eq!(missing.map(drop), Err(RewardError::Budget(1)));
        assert_eq!(begun.elapsed().as_secs(), 3600 + 60);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_step_that_never_comes_is_a_named_error() {
        let queries = QueryBudget::new(limits(8, 1));
        queries.admit().await.map(drop).expect("the first");
        let begun = Instant::now();
        let missing = queries.admit().await.map(drop).unwrap_err();
        assert_eq!((begun.elapsed().as_secs(), &missing), (60, &RewardError::Budget(1)));
        assert!(missing.to_string().contains("scorer.queries_per_step") && !missing.is_retryable());
        assert!(!missing.needs_quarantine(), "it is not the rollout's fault");
    }
}
