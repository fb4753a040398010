//! Opens and removes what a run has on the broker: the stream, the object store and the consumers.

use super::state::{Shared, WaitingJob};
use crate::remote::broker::BrokerError;
use crate::remote::message::{Query, Question, encode};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use futures::TryStreamExt as _;
use std::time::Duration;
use tracing::warn;

/// Time after which the broker redelivers an unacknowledged result: one that was lost in transit, or whose job has not
/// been submitted yet.
const RESULT_ACK_WAIT: Duration = Duration::from_secs(30);
/// Time after which the broker deletes the consumers of an inactive run.
const INACTIVE: Duration = Duration::from_secs(7 * 24 * 3600);

impl Shared {
    /// Refuses to start beside another process of the same run, and removes the jobs of an earlier one: this process
    /// submits what it needs. Results stay.
    pub(super) async fn remove_old_jobs(&self) -> Result<(), BrokerError> {
        let names = &self.broker.names;
        let run = &self.options.run;
        let job = String::new();
        let query = Query::Wanted { worker: String::new() };
        let probe = encode(&Question { job, delivery: 0, number: 0, session: 0, query });
        if self.broker.client.request(names.questions(run), probe.into()).await.is_ok() {
            return Err(BrokerError::refused(
                format!("start the run `{run}`"),
                "another process is this run: stop it, or give this one another `nats.run`",
            ));
        }
        for offer in &self.offers {
            let consumer = names.job_consumer(run, &offer.name);
            drop(self.broker.jetstream.delete_consumer_from_stream(&consumer, names.stream()).await);
        }
        let refused =
            |why: &dyn std::fmt::Display| BrokerError::refused("remove the jobs of an earlier process", why);
        let stream = self
            .broker
            .jetstream
            .get_stream_no_info(names.stream())
            .await
            .map_err(|error| refused(&error))?;
        stream.purge().filter(names.all_jobs(run)).await.map_err(|error| refused(&error))?;
        Ok(())
    }

    /// Opens the stream and the object store. Creates them if they do not exist.
    pub(super) async fn open(&self) -> Result<(), BrokerError> {
        self.broker.open_stream(self.options.stream).await?;
        self.broker.open_bucket(&self.options.run, self.options.stream).await?;
        Ok(())
    }

    /// Creates the consumers of jobs and results, and returns the one of results.
    pub(super) async fn make_consumers(&self) -> Result<PullConsumer, BrokerError> {
        let names = &self.broker.names;
        let run = &self.options.run;
        for offer in &self.offers {
            self.make_job_consumer(&offer.name).await?;
        }
        self.make_consumer(pull::Config {
            durable_name: Some(names.result_consumer(run)),
            filter_subject: names.results(run),
            ack_wait: RESULT_ACK_WAIT,
            max_ack_pending: -1,
            ..pull::Config::default()
        })
        .await
    }

    async fn make_job_consumer(&self, environment: &str) -> Result<PullConsumer, BrokerError> {
        let names = &self.broker.names;
        let run = &self.options.run;
        self.make_consumer(pull::Config {
            durable_name: Some(names.job_consumer(run, environment)),
            filter_subject: names.jobs(run, environment),
            ack_wait: self.options.ack_wait,
            // Workers count deliveries and store a dead letter at the limit. The broker would only drop the job.
            max_deliver: -1,
            max_ack_pending: self.options.max_ack_pending,
            ..pull::Config::default()
        })
        .await
    }

    async fn make_consumer(&self, config: pull::Config) -> Result<PullConsumer, BrokerError> {
        let name = config.durable_name.clone().unwrap_or_default();
        let config = pull::Config { ack_policy: AckPolicy::Explicit, inactive_threshold: INACTIVE, ..config };
        let stream = self.broker.names.stream();
        let made = self.broker.jetstream.create_consumer_on_stream(config, stream).await;
        made.map_err(|error| BrokerError::refused(format!("create the consumer `{name}`"), error))
    }

    /// Deletes the consumers of the run, its jobs, its results and its objects.
    pub(super) async fn remove_all(&self) {
        let names = &self.broker.names;
        let run = &self.options.run;
        let job_consumers = self.offers.iter().map(|offer| names.job_consumer(run, &offer.name));
        for consumer in job_consumers.chain([names.result_consumer(run)]) {
            drop(self.broker.jetstream.delete_consumer_from_stream(&consumer, names.stream()).await);
        }
        if let Ok(stream) = self.broker.jetstream.get_stream_no_info(names.stream()).await {
            for subjects in [names.all_jobs(run), names.results(run)] {
                drop(stream.purge().filter(subjects).await);
            }
        }
        drop(self.broker.jetstream.delete_object_store(names.bucket(run)).await);
    }

    /// Recreates the consumer of an environment if it has neither pending nor unacknowledged messages while jobs are
    /// queued. This happens after some failures of the broker (nats-server issues 4736 and 7680).
    pub(super) async fn wake_consumer(&self, environment: &str) -> Result<(), async_nats::Error> {
        let names = &self.broker.names;
        let run = &self.options.run;
        let name = names.job_consumer(run, environment);
        let stream = self.broker.jetstream.get_stream_no_info(names.stream()).await?;
        let queued = async || -> Result<bool, async_nats::Error> {
            let mut jobs = stream.info_with_subjects(names.jobs(run, environment)).await?;
            Ok(jobs.try_next().await?.is_some())
        };
        if !queued().await? {
            return Ok(());
        }
        match stream.consumer_info(&name).await {
            Ok(consumer) => {
                if consumer.num_pending > 0 || consumer.num_ack_pending > 0 || !queued().await? {
                    return Ok(());
                }
                stream.delete_consumer(&name).await?;
            }
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        warn!(environment, "the broker does not deliver queued jobs: their consumer is recreated");
        self.make_job_consumer(environment).await?;
        self.jobs().of_environment(environment).for_each(WaitingJob::count_anew);
        Ok(())
    }
}
