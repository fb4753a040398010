//! The workers of a run, from their reports.

use super::message::WorkerReport;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

/// Time without a report after which a worker is forgotten.
const SILENT: Duration = Duration::from_secs(15);

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
}

/// The workers of a run, by name.
#[derive(Default)]
pub(super) struct WorkerTable {
    workers: BTreeMap<String, SeenWorker>,
}

impl WorkerTable {
    /// All workers that have reported recently, sorted by name.
    pub(super) fn all(&self) -> Vec<SeenWorker> {
        self.workers.values().cloned().collect()
    }

    /// Records a report. Logs a new worker and new problems.
    pub(super) fn report(&mut self, report: WorkerReport) {
        let seen = Instant::now();
        let known = self.workers.get_mut(&report.worker);
        let old: &[(String, String)] = known.as_ref().map_or(&[], |known| &known.report.problems);
        for (environment, problem) in report.problems.iter().filter(|problem| !old.contains(problem)) {
            warn!(worker = report.worker, environment, problem, "a worker cannot serve an environment");
        }
        let WorkerReport { worker, concurrency, serves, .. } = &report;
        if report.leaves {
            info!(worker, "a worker has left");
            self.workers.remove(worker);
            return;
        }
        if !serves.is_empty() && known.as_ref().is_none_or(|known| known.report.serves.is_empty()) {
            info!(worker, concurrency, serves = serves.join(", "), "a worker has joined");
        }
        match known {
            Some(known) => {
                known.report = report;
                known.seen = seen;
            }
            None => {
                let worker = worker.clone();
                self.workers.insert(worker, SeenWorker { report, results: 0, took: Duration::ZERO, seen });
            }
        }
    }

    /// Counts a result of a worker and the time that it took.
    pub(super) fn done(&mut self, worker: &str, took: Duration) {
        // A result may arrive before the worker's first report.
        let worker = self.workers.entry(worker.to_owned()).or_insert_with(|| SeenWorker {
            report: WorkerReport { worker: worker.to_owned(), ..WorkerReport::default() },
            results: 0,
            took: Duration::ZERO,
            seen: Instant::now(),
        });
        worker.results += 1;
        // A worker may report any time.
        worker.took = worker.took.saturating_add(took);
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
}
