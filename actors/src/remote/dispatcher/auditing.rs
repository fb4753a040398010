//! What a run does periodically: looks for lost jobs, announces itself, and warns about jobs that no worker takes.

use super::state::{Shared, WaitingJob};
use crate::remote::message::{Announcement, encode};
use futures::TryStreamExt as _;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, warn};

/// Time between two announcements.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(2);
/// Rate limit of the warning that no worker serves an environment.
const WARN_EVERY: Duration = Duration::from_secs(60);

impl Shared {
    /// Looks periodically for stuck jobs. Publishes jobs again that the broker has lost, and recreates consumers that
    /// do not deliver queued jobs.
    pub(super) async fn audit(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(self.options.audit_every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let is_old = |waiting: &WaitingJob| waiting.since.elapsed() >= self.options.audit_every;
            let old: Vec<String> = {
                let jobs = self.jobs();
                jobs.waiting.iter().filter(|(_, waiting)| is_old(waiting)).map(|(id, _)| id.clone()).collect()
            };
            if old.is_empty() {
                continue;
            }
            let Ok(stored) = self.stored().await else { continue };
            self.hand_out_lost(old.iter().filter(|id| !stored.contains(*id)));
            for offer in &self.offers {
                if let Err(error) = self.wake_consumer(&offer.name).await {
                    debug!(%error, environment = offer.name, "failed to check a consumer");
                }
            }
        }
    }

    /// Makes the callers of lost jobs publish them again.
    fn hand_out_lost<'a>(&self, lost: impl Iterator<Item = &'a String>) {
        let mut jobs = self.jobs();
        for id in lost {
            if let Some(waiting) = jobs.waiting.get_mut(id) {
                warn!(job = id, "the broker no longer has this job; publishing it again");
                waiting.since = Instant::now();
                waiting.count_anew();
                waiting.missing.notify_one();
            }
        }
    }

    /// Ids of all jobs and results of this run in the stream.
    async fn stored(&self) -> Result<HashSet<String>, async_nats::Error> {
        let names = &self.broker.names;
        let run = &self.options.run;
        let mut ids = HashSet::new();
        // Jobs first: a job whose result is stored in the meantime is in one of the two lists.
        for filter in [names.all_jobs(run), names.results(run)] {
            let stream = self.broker.jetstream.get_stream_no_info(names.stream()).await?;
            let mut subjects = stream.info_with_subjects(&filter).await?;
            while let Some((subject, _)) = subjects.try_next().await? {
                ids.insert(subject.rsplit('.').next().unwrap_or_default().to_owned());
            }
        }
        Ok(ids)
    }

    /// Announces the run and its environments to workers periodically.
    pub(super) async fn announce(self: Arc<Self>) {
        let announcement = Announcement {
            run: self.options.run.clone(),
            program: self.options.program.clone(),
            environments: self.offers.clone(),
            ack_wait: self.options.ack_wait,
            max_deliver: self.options.max_deliver,
        };
        let bytes: bytes::Bytes = encode(&announcement).into();
        let subject = self.broker.names.announcements(Some(&self.options.run));
        let mut warned = Instant::now();
        let mut ticks = tokio::time::interval(ANNOUNCE_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let announced = self.broker.client.publish(subject.clone(), bytes.clone()).await;
            self.workers().forget_silent();
            if warned.elapsed() >= WARN_EVERY {
                warned = Instant::now();
                if let Err(error) = announced {
                    warn!(%error, bytes = bytes.len(), "failed to announce the run: no worker can join");
                }
                self.warn_of_idle_jobs();
            }
        }
    }

    /// Warns about environments that no worker serves while jobs wait.
    fn warn_of_idle_jobs(&self) {
        if self.jobs().waiting.is_empty() {
            return;
        }
        let workers = self.workers().all();
        let served = |name: &String| workers.iter().any(|worker| worker.report.serves.contains(name));
        for name in self.offers.iter().map(|offer| &offer.name).filter(|name| !served(name)) {
            warn!(
                environment = name,
                run = self.options.run,
                "no worker serves an environment: its jobs wait"
            );
        }
    }
}
