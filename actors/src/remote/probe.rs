//! Tries what runs and workers need of a broker, with a job that no run has.

use super::broker::{ANSWER_TIMEOUT, Broker, BrokerError, full_error};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use bytes::Bytes;
use futures::StreamExt as _;

/// Name of the environment of the test job.
const ENVIRONMENT: &str = "nats-check";

/// Publishes a job of a test run, takes it from the stream, and deletes everything that the test created.
///
/// # Errors
/// The broker rejected a request.
pub async fn probe(broker: &Broker) -> Result<(), BrokerError> {
    let run = format!("probe-{}", broker.client.new_inbox().rsplit(['.', '_']).next().unwrap_or_default());
    let consumer = make_consumer(broker, &run).await?;
    let passed = async {
        store_job(broker, &run).await?;
        take_job(&consumer).await
    };
    let passed = passed.await;
    let removed = remove_consumer(broker, &run).await;
    passed.and(removed)
}

/// Publishes and deletes a job of this run, with a consumer. This needs the permissions of the run's own user, who may
/// not take jobs.
///
/// # Errors
/// The broker rejected a request.
pub async fn probe_run(broker: &Broker, run: &str) -> Result<(), BrokerError> {
    make_consumer(broker, run).await?;
    let stored = async {
        let sequence = store_job(broker, run).await?;
        let stream = broker.stream().await?;
        let deleted = stream.delete_message(sequence).await;
        deleted.map(|_| ()).map_err(|error| BrokerError::refused("delete a job", error))
    };
    let stored = stored.await;
    let removed = remove_consumer(broker, run).await;
    stored.and(removed)
}

async fn make_consumer(broker: &Broker, run: &str) -> Result<PullConsumer, BrokerError> {
    let names = &broker.names;
    let config = pull::Config {
        durable_name: Some(names.job_consumer(run, ENVIRONMENT)),
        filter_subject: names.jobs(run, ENVIRONMENT),
        ack_policy: AckPolicy::Explicit,
        ..pull::Config::default()
    };
    let made = broker.jetstream.create_consumer_on_stream(config, names.stream()).await;
    made.map_err(|error| BrokerError::refused("create a consumer", error))
}

async fn remove_consumer(broker: &Broker, run: &str) -> Result<(), BrokerError> {
    let names = &broker.names;
    let consumer = names.job_consumer(run, ENVIRONMENT);
    let removed = broker.jetstream.delete_consumer_from_stream(&consumer, names.stream()).await;
    removed.map(|_| ()).map_err(|error| BrokerError::refused("delete a consumer", error))
}

/// Stores a job, and returns its position in the stream.
async fn store_job(broker: &Broker, run: &str) -> Result<u64, BrokerError> {
    let subject = broker.names.job(run, ENVIRONMENT, "1");
    let sent = broker.jetstream.publish(subject, Bytes::from_static(b"probe")).await;
    let stored = match sent {
        Ok(acknowledged) => acknowledged.await,
        Err(error) => Err(error),
    };
    let stored = stored.map_err(|error| BrokerError::refused("store a job", full_error(&error)))?;
    Ok(stored.sequence)
}

async fn take_job(consumer: &PullConsumer) -> Result<(), BrokerError> {
    let refused = |error: &dyn std::fmt::Display| BrokerError::refused("deliver a job", error);
    let taking = consumer.batch().max_messages(1).expires(ANSWER_TIMEOUT).messages().await;
    let mut taking = taking.map_err(|error| refused(&error))?;
    let message = taking.next().await.ok_or_else(|| refused(&"no job was delivered"))?;
    let message = message.map_err(|error| refused(&error))?;
    message.double_ack().await.map_err(|error| BrokerError::refused("acknowledge a job", error))
}
