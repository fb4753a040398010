//! Job slots of workers behind a broker, some of which may be gone for a while.
//!
//! A job keeps its slot until its result is stored, as in a worker, which takes no job that cannot begin at once. The
//! slots and the jobs that wait for them are served in a fixed order, so the same seed gives the same events.

use crate::config::simulate::WorkerLoss;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};

/// Behavior of simulated workers.
pub struct SimulatedWorkersOptions {
    /// Job slots of all workers.
    pub slots: NonZeroUsize,
    /// Time windows in which workers are gone.
    pub losses: Vec<WorkerLoss>,
    /// Time after which a job of a worker that is gone is delivered again.
    pub ack_wait: Duration,
    /// Number of deliveries after which a job is a dead letter.
    pub max_deliver: u64,
}

/// Workers that run one job in each of their slots.
pub struct SimulatedWorkers {
    options: SimulatedWorkersOptions,
    started: Instant,
    pool: Arc<SlotPool>,
}

impl SimulatedWorkers {
    /// Starts workers; the windows of their losses count from now.
    pub fn new(options: SimulatedWorkersOptions) -> Self {
        let slots = options.slots.get();
        let pool = SlotPool { permits: Semaphore::new(slots), free: Mutex::new((0..slots).collect()) };
        Self { options, started: Instant::now(), pool: Arc::new(pool) }
    }

    /// Number of job slots.
    pub fn slots(&self) -> usize {
        self.options.slots.get()
    }

    /// Runs a job in the first free slot. If the slot's worker goes, `job` is called again after the wait for an
    /// acknowledgement, behind the jobs that wait by then, after a call of `redelivered`. Returns `None` for a dead letter.
    pub async fn run<T, J: Future<Output = T>>(
        &self,
        job: impl Fn() -> J,
        redelivered: impl Fn(),
    ) -> Option<T> {
        for _ in 0..self.options.max_deliver {
            let slot = self.take_slot().await;
            let Some(gone) = self.next_loss(slot.number) else { return Some(job().await) };
            tokio::select! {
                biased;
                done = job() => return Some(done),
                () = sleep_until(gone) => self.park(slot),
            }
            redelivered();
            sleep(self.options.ack_wait).await;
        }
        None
    }

    /// Waits for a free slot whose worker is there.
    async fn take_slot(&self) -> JobSlot {
        loop {
            let slot = SlotPool::take(&self.pool).await;
            if self.returns_at(slot.number).is_none() {
                return slot;
            }
            self.park(slot);
        }
    }

    /// Keeps a slot until its worker is back.
    fn park(&self, slot: JobSlot) {
        let back = self.returns_at(slot.number).unwrap_or_else(Instant::now);
        tokio::spawn(async move {
            sleep_until(back).await;
            drop(slot);
        });
    }

    /// Start of the next window in which the slot's worker is gone.
    fn next_loss(&self, slot: usize) -> Option<Instant> {
        let now = Instant::now();
        let starts = self.losses_of(slot).map(|loss| self.started + loss.at);
        starts.filter(|at| *at > now).min()
    }

    /// End of the window in which the slot's worker is gone; `None` if it is there.
    fn returns_at(&self, slot: usize) -> Option<Instant> {
        let now = self.started.elapsed();
        let covering = self.losses_of(slot).filter(|loss| (loss.at..loss.until).contains(&now));
        covering.map(|loss| self.started + loss.until).max()
    }

    /// Losses that take this slot: those that remain are the first ones.
    fn losses_of(&self, slot: usize) -> impl Iterator<Item = &WorkerLoss> {
        let slots = self.slots() as f64;
        self.options.losses.iter().filter(move |loss| slot as f64 >= (loss.left * slots).round())
    }
}

/// Free slots by number.
struct SlotPool {
    permits: Semaphore,
    free: Mutex<BTreeSet<usize>>,
}

impl SlotPool {
    async fn take(pool: &Arc<Self>) -> JobSlot {
        pool.permits.acquire().await.expect("the slots are never closed").forget();
        let number = pool.free().pop_first().expect("each permit stands for a free slot");
        JobSlot { pool: pool.clone(), number }
    }

    fn free(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot in use; free again when it is dropped.
struct JobSlot {
    pool: Arc<SlotPool>,
    number: usize,
}

impl Drop for JobSlot {
    fn drop(&mut self) {
        self.pool.free().insert(self.number);
        self.pool.permits.add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;

    const SECOND: Duration = Duration::from_secs(1);

    fn workers(slots: usize, losses: Vec<WorkerLoss>, max_deliver: u64) -> SimulatedWorkers {
        let slots = NonZeroUsize::new(slots).unwrap();
        SimulatedWorkers::new(SimulatedWorkersOptions { slots, losses, ack_wait: 30 * SECOND, max_deliver })
    }

    /// Seconds at which each of `jobs` jobs of 10 s ends; `None` for a dead letter.
    async fn ends(workers: &SimulatedWorkers, jobs: usize) -> Vec<Option<u64>> {
        let started = Instant::now();
        let job = || async {
            sleep(10 * SECOND).await;
            started.elapsed().as_secs()
        };
        join_all((0..jobs).map(|_| workers.run(job, || {}))).await
    }

    fn loss(at: u32, until: u32, left: f64) -> WorkerLoss {
        WorkerLoss { at: at * SECOND, until: until * SECOND, left }
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_jobs_run_as_there_are_slots() {
        assert_eq!(ends(&workers(2, vec![], 5), 5).await, [10, 10, 20, 20, 30].map(Some));
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_of_workers_that_go_run_again_after_the_wait_on_those_that_remain() {
        let workers = workers(4, vec![loss(5, 1000, 0.5)], 5);
        assert_eq!(ends(&workers, 4).await, [10, 10, 45, 45].map(Some));
        assert_eq!(ends(&workers, 4).await, [10, 10, 20, 20].map(Some), "two slots are left");
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_wait_until_a_worker_is_back() {
        let workers = workers(2, vec![loss(0, 100, 0.0)], 5);
        assert_eq!(ends(&workers, 2).await, [110, 110].map(Some));
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_whose_workers_all_go_is_a_dead_letter() {
        let losses = vec![loss(5, 6, 0.0), loss(40, 41, 0.0)];
        assert_eq!(ends(&workers(1, losses.clone(), 2), 1).await, [None]);
        assert_eq!(ends(&workers(1, losses, 3), 1).await, [Some(80)]);
    }
}
