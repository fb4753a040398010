//! Jobs that no worker finished, with their cause. They stay on the broker until somebody has looked at them.

use super::broker::{Broker, BrokerError};
use async_nats::HeaderMap;
use async_nats::jetstream::Message;
use async_nats::jetstream::stream::Stream;
use futures::TryStreamExt as _;

const RUN: &str = "Minds-Run";
const ENVIRONMENT: &str = "Minds-Environment";
const CAUSE: &str = "Minds-Cause";

/// A job that no worker finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Name of its run on the broker.
    pub run: String,
    /// Name of its environment.
    pub environment: String,
    /// Its id.
    pub job: String,
    /// Why it is one.
    pub cause: String,
}

/// A dead letter as it is stored.
#[derive(Clone, Debug)]
pub struct StoredLetter {
    /// What it is about.
    pub letter: DeadLetter,
    /// When it was stored, in RFC 3339.
    pub stored: String,
    /// The job in the form in which it travels.
    pub payload: bytes::Bytes,
    headers: HeaderMap,
    sequence: u64,
}

/// Stores a job as a dead letter.
pub(super) async fn keep(broker: &Broker, letter: &DeadLetter, message: &Message) {
    let mut headers = message.headers.clone().unwrap_or_default();
    headers.insert(RUN, letter.run.as_str());
    headers.insert(ENVIRONMENT, one_line(&letter.environment));
    headers.insert(CAUSE, one_line(&letter.cause));
    let subject = broker.names.dead(&letter.run, &letter.environment, &letter.job);
    broker.publish_parts(&subject, &headers, &message.payload).await;
}

/// A text without what a header cannot hold.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// All dead letters of the stream, or those of one run, by subject.
///
/// # Errors
/// The broker refused.
pub async fn list(broker: &Broker, run: Option<&str>) -> Result<Vec<StoredLetter>, BrokerError> {
    let stream = broker.stream().await?;
    let refused = |why: &dyn std::fmt::Display| BrokerError::refused("list dead letters", why);
    let filter = broker.names.dead_letters(run);
    let found = stream.info_with_subjects(&filter).await.map_err(|error| refused(&error))?;
    let mut subjects: Vec<String> =
        found.map_ok(|(subject, _)| subject).try_collect().await.map_err(|error| refused(&error))?;
    subjects.sort();
    let mut letters = Vec::new();
    for subject in subjects {
        letters.extend(read(&stream, &subject).await);
    }
    Ok(letters)
}

/// A dead letter; `None` if it was removed meanwhile.
async fn read(stream: &Stream, subject: &str) -> Option<StoredLetter> {
    let found = stream.get_last_raw_message_by_subject(subject).await.ok()?;
    let job = subject.rsplit('.').next()?.to_owned();
    let header =
        |name: &str| found.headers.get(name).map_or_else(String::new, |value| value.as_str().to_owned());
    let letter = DeadLetter { run: header(RUN), environment: header(ENVIRONMENT), job, cause: header(CAUSE) };
    Some(StoredLetter {
        letter,
        stored: found.time.to_string(),
        payload: found.payload,
        headers: found.headers,
        sequence: found.sequence,
    })
}

/// The encoded job of a dead letter.
///
/// # Errors
/// It was too large for a message, and its object is gone.
pub async fn body(broker: &Broker, stored: &StoredLetter) -> Result<bytes::Bytes, BrokerError> {
    broker.unpack_parts(&stored.letter.run, Some(&stored.headers), &stored.payload).await
}

/// Queues the job of a dead letter again.
///
/// # Errors
/// The broker refused to delete the letter.
pub async fn replay(broker: &Broker, stored: &StoredLetter) -> Result<(), BrokerError> {
    let DeadLetter { run, environment, job, .. } = &stored.letter;
    let subject = broker.names.job(run, environment, job);
    broker.publish_parts(&subject, &stored.headers, &stored.payload).await;
    remove(broker, stored).await
}

/// Deletes a dead letter.
///
/// # Errors
/// The broker refused.
pub async fn remove(broker: &Broker, stored: &StoredLetter) -> Result<(), BrokerError> {
    let stream = broker.stream().await?;
    let deleted = stream.delete_message(stored.sequence).await;
    deleted.map(|_| ()).map_err(|error| BrokerError::refused("delete a dead letter", error))
}
