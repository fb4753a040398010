//! Publishes jobs, within the limits of the run's memory and of the stream, and withdraws canceled ones.

use super::state::{PAUSE, Shared};
use super::stream_fill::StreamFill;
use crate::remote::broker::{PackedMessage, Published};
use crate::remote::message::{Job, encode};
use crate::remote::settled_jobs::Settlement;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tracing::{debug, warn};

/// Time between two looks at how full the stream is.
const FILL_EVERY: Duration = Duration::from_secs(1);

/// Cancels a job when its caller drops the future.
pub(super) struct Withdrawal {
    shared: Arc<Shared>,
    /// Id and environment; `None` once the result arrived.
    job: Option<(String, String)>,
}

impl Withdrawal {
    pub(super) fn new(shared: &Arc<Shared>, id: &str, environment: &str) -> Self {
        Self { shared: shared.clone(), job: Some((id.to_owned(), environment.to_owned())) }
    }

    /// The result arrived: the job is not canceled.
    pub(super) fn cancel(mut self) {
        self.job = None;
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        let Some((id, environment)) = self.job.take() else { return };
        let shared = self.shared.clone();
        {
            let mut jobs = shared.jobs();
            jobs.waiting.remove(&id);
            jobs.settled.add(id.clone(), Settlement::Withdrawn);
        }
        if shared.leaving.load(Relaxed) {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { shared.withdraw(&id, &environment).await });
        }
    }
}

impl Shared {
    /// Keeps track of how full the stream is. A quarter of it is left for results: a stream that is full of jobs would
    /// take no result, and so lose no job.
    pub(super) async fn watch_fill(self: Arc<Self>) {
        loop {
            if let Ok(info) = self.stream_info().await {
                let most = u64::try_from(info.config.max_bytes).ok().filter(|most| *most > 0);
                *self.fill() = StreamFill { bytes: info.state.bytes, most: most.map(|most| most / 4 * 3) };
            }
            tokio::time::sleep(FILL_EVERY).await;
        }
    }

    async fn stream_info(&self) -> Result<async_nats::jetstream::stream::Info, async_nats::Error> {
        let stream = self.broker.jetstream.get_stream_no_info(self.broker.names.stream()).await?;
        Ok(stream.get_info().await?)
    }

    /// Stores a job on the broker. Waiting jobs occupy at most `buffer_bytes`. Returns whether the job's body is in the
    /// object store.
    pub(super) async fn publish(&self, id: &str, job: &Job<'_>) -> bool {
        let encoded = encode(job);
        let bytes = encoded.len().min(self.options.buffer_bytes);
        // The semaphore is never closed. Without a permit the job would only not be counted.
        let _room = self.buffer.acquire_many(u32::try_from(bytes).unwrap_or(u32::MAX)).await;
        while !self.fill().take(encoded.len() as u64) {
            tokio::time::sleep(FILL_EVERY).await;
        }
        let message = self.pack_job(id, encoded.into()).await;
        let subject = self.broker.names.job(&self.options.run, &job.environment, id);
        if self.broker.publish(&subject, &message).await == Published::Exists {
            debug!(job = id, "the job is queued already");
        }
        message.is_object()
    }

    /// Packs a job into a message. Retries without a limit until the broker stores a large body.
    async fn pack_job(&self, id: &str, job: bytes::Bytes) -> PackedMessage {
        loop {
            match self.broker.pack(&self.options.run, id, job.clone()).await {
                Ok(message) => return message,
                Err(error) => {
                    warn!(job = id, %error, "a large job waits until the broker stores it");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Deletes a job from the queue and cancels it at its worker.
    async fn withdraw(&self, id: &str, environment: &str) {
        let names = &self.broker.names;
        let subject = names.cancellations(&self.options.run);
        // A worker that misses the message finishes the job, and its result is dropped as late.
        drop(self.broker.client.publish(subject, id.to_owned().into()).await);
        // Not a purge: in older servers, a purge of one subject makes the consumer skip other messages.
        if let Ok(stream) = self.broker.jetstream.get_stream_no_info(names.stream()).await
            && let Ok(job) =
                stream.get_last_raw_message_by_subject(&names.job(&self.options.run, environment, id)).await
        {
            drop(stream.delete_message(job.sequence).await);
        }
    }
}
