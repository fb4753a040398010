//! The workers of a run, from their reports.

use super::message::WorkerReport;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

/// Time without a report after which a worker is forgotten.
const SILENT: Duration = Duration::from_secs(15);
/// Most workers in the table. Any user who may report can make up names.
const MOST_WORKERS: usize = 4096;

/// A worker's last report and the run's own counts of its results.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenWorker {
    /// The last report of the worker.
    pub report: WorkerReport,
    /// Results of this worker that the run received.
    pub results: u64,
    /// Total time that the worker spent on these jobs.
    pub took: Duration,
    seen: Instant,
    /// The process that reported under this name before this one; 0 for none.
    earlier_instance: u64,
    /// Whether two processes report under this name.
    is_shared: bool,
}

impl SeenWorker {
    fn take(&mut self, report: WorkerReport) {
        self.seen = Instant::now();
        let old = std::mem::replace(&mut self.report, report);
        let WorkerReport { worker, instance, concurrency, serves, problems, .. } = &self.report;
        for (environment, problem) in problems.iter().filter(|problem| !old.problems.contains(problem)) {
            warn!(worker, environment, problem, "a worker cannot serve an environment");
        }
        if !serves.is_empty() && old.serves.is_empty() {
            info!(worker, concurrency, serves = serves.join(", "), "a worker has joined");
        }
        if *instance != old.instance {
            // A worker that was restarted has a new number; an earlier number comes back if both processes run.
            if *instance == self.earlier_instance && !std::mem::replace(&mut self.is_shared, true) {
                warn!(worker, "two workers have this name: give each a `--name` of its own");
            }
            self.earlier_instance = old.instance;
        }
    }
}

/// The workers of a run, by name.
#[derive(Default)]
pub(super) struct WorkerTable {
    workers: BTreeMap<String, SeenWorker>,
    /// Whether a warning told that the table is full.
    is_full: bool,
}

impl WorkerTable {
    /// All workers that have reported recently, sorted by name.
    pub(super) fn all(&self) -> Vec<SeenWorker> {
        self.workers.values().cloned().collect()
    }

    /// Records a report. Logs a new worker, new problems and a name that two workers have.
    pub(super) fn report(&mut self, report: WorkerReport) {
        if report.leaves {
            if self.workers.remove(&report.worker).is_some() {
                info!(worker = report.worker, "a worker has left");
            }
            return;
        }
        if let Some(worker) = self.worker(&report.worker) {
            worker.take(report);
        }
    }

    /// Counts a result of a worker and the time that it took.
    pub(super) fn done(&mut self, worker: &str, took: Duration) {
        // A result may arrive before the worker's first report.
        let Some(worker) = self.worker(worker) else { return };
        worker.results += 1;
        // A worker may report any time.
        worker.took = worker.took.saturating_add(took);
    }

    /// The worker with this name, new if necessary; `None` if the table is full.
    fn worker(&mut self, name: &str) -> Option<&mut SeenWorker> {
        if self.workers.len() >= MOST_WORKERS && !self.workers.contains_key(name) {
            if !std::mem::replace(&mut self.is_full, true) {
                warn!(worker = name, "too many workers report: this and later ones are not shown");
            }
            return None;
        }
        Some(self.workers.entry(name.to_owned()).or_insert_with(|| SeenWorker {
            report: WorkerReport { worker: name.to_owned(), ..WorkerReport::default() },
            results: 0,
            took: Duration::ZERO,
            seen: Instant::now(),
            earlier_instance: 0,
            is_shared: false,
        }))
    }

    /// Forgets workers without a report for [`SILENT`].
    pub(super) fn forget_silent(&mut self) {
        self.workers.retain(|name, worker| {
            let stays = worker.seen.elapsed() < SILENT;
            // A worker that has left may still have finished a job.
            if !stays && !worker.report.serves.is_empty() {
                warn!(worker = name, "a worker has stopped reporting: its jobs will be redelivered");
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_worker_is_there_as_long_as_it_reports() {
        let mut table = WorkerTable::default();
        let report = |worker: &str| WorkerReport { worker: worker.into(), ..WorkerReport::default() };
        table.report(report("a"));
        table.report(report("b"));
        table.done("a", Duration::from_secs(2));
        table.done("c", Duration::from_secs(2));
        advance(SILENT - Duration::from_secs(1)).await;
        table.report(report("a"));
        advance(Duration::from_secs(1)).await;
        table.forget_silent();
        let left = table.all();
        assert_eq!(left.len(), 1);
        assert_eq!((&*left[0].report.worker, left[0].results, left[0].took.as_secs()), ("a", 1, 2));
        table.report(WorkerReport { leaves: true, ..report("a") });
        assert!(table.all().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_restarted_worker_keeps_its_name_but_two_at_a_time_are_noticed() {
        let mut table = WorkerTable::default();
        let mut shared_after = |instance| {
            table.report(WorkerReport { worker: "a".into(), instance, ..WorkerReport::default() });
            table.all()[0].is_shared
        };
        assert_eq!([7, 7, 8, 8, 9].map(&mut shared_after), [false; 5], "restarted twice");
        assert!(shared_after(8), "8 and 9 both report");
    }

    #[tokio::test(start_paused = true)]
    async fn made_up_names_do_not_fill_memory() {
        let mut table = WorkerTable::default();
        for name in 0..MOST_WORKERS + 10 {
            table.report(WorkerReport { worker: name.to_string(), ..WorkerReport::default() });
        }
        assert_eq!(table.all().len(), MOST_WORKERS);
    }
}
