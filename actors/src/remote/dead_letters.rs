//! Dead letters: jobs that no worker finished, each with its cause.
//!
//! They stay in the stream until they are queued again, purged, or older than the stream's maximum age.

use super::broker::{Broker, BrokerError};
use async_nats::HeaderMap;
use async_nats::jetstream::Message;
use async_nats::jetstream::stream::{LastRawMessageError, LastRawMessageErrorKind, Stream};
use futures::TryStreamExt as _;
use std::time::SystemTime;

const ENVIRONMENT: &str = "Minds-Environment";
const CAUSE: &str = "Minds-Cause";

/// A job that no worker finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Name of the job's run on the broker.
    pub run: String,
    /// Name of the job's environment in the run.
    pub environment: String,
    /// Id of the job.
    pub job: String,
    /// Why no worker finished the job.
    pub cause: String,
}

/// A dead letter in the stream.
#[derive(Clone, Debug)]
pub struct StoredLetter {
    /// The job and its cause.
    pub letter: DeadLetter,
    /// Time at which it was stored.
    pub stored: SystemTime,
    /// The encoded job; empty if it is in the object store.
    pub payload: bytes::Bytes,
    headers: HeaderMap,
    sequence: u64,
}

/// Stores a job as a dead letter.
pub(super) async fn keep(broker: &Broker, letter: &DeadLetter, message: &Message) {
    let mut headers = message.headers.clone().unwrap_or_default();
    headers.insert(ENVIRONMENT, one_line(&letter.environment));
    headers.insert(CAUSE, one_line(&letter.cause));
    let subject = broker.names.dead(&letter.run, &letter.environment, &letter.job);
    broker.publish_parts(&subject, &headers, &message.payload).await;
}

/// Replaces control characters, which a header cannot contain, with spaces.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns the dead letters of the stream or of one run, oldest first.
///
/// # Errors
/// The broker rejected the request.
pub async fn list(broker: &Broker, run: Option<&str>) -> Result<Vec<StoredLetter>, BrokerError> {
    let stream = broker.stream().await?;
    let refused = |why: &dyn std::fmt::Display| BrokerError::refused("list dead letters", why);
    let filter = broker.names.dead_letters(run);
    let found = stream.info_with_subjects(&filter).await.map_err(|error| refused(&error))?;
    let subjects: Vec<String> =
        found.map_ok(|(subject, _)| subject).try_collect().await.map_err(|error| refused(&error))?;
    let mut letters = Vec::new();
    for subject in subjects {
        let read = read(&stream, &subject).await;
        letters.extend(read.map_err(|error| BrokerError::refused("read a dead letter", error))?);
    }
    letters.sort_by_key(|stored: &StoredLetter| stored.sequence);
    Ok(letters)
}

/// Reads a dead letter. Returns `None` if it was deleted in the meantime.
async fn read(stream: &Stream, subject: &str) -> Result<Option<StoredLetter>, LastRawMessageError> {
    let found = match stream.get_last_raw_message_by_subject(subject).await {
        Ok(found) => found,
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut tokens = subject.split('.').skip(2).map(str::to_owned);
    let (Some(run), Some(environment), Some(job)) = (tokens.next(), tokens.next(), tokens.next()) else {
        return Ok(None);
    };
    let header = |name: &str| found.headers.get(name).map(|value| value.as_str().to_owned());
    let letter = DeadLetter {
        run,
        // The subject holds only an encoded form of the name.
        environment: header(ENVIRONMENT).unwrap_or(environment),
        job,
        cause: header(CAUSE).unwrap_or_else(|| "unknown: the letter has no cause".into()),
    };
    Ok(Some(StoredLetter {
        letter,
        stored: found.time.into(),
        payload: found.payload,
        headers: found.headers,
        sequence: found.sequence,
    }))
}

/// Returns the encoded job of a dead letter.
///
/// # Errors
/// The job is in the object store and cannot be read from there.
pub async fn body(broker: &Broker, stored: &StoredLetter) -> Result<bytes::Bytes, BrokerError> {
    broker.unpack_parts(&stored.letter.run, Some(&stored.headers), &stored.payload).await
}

/// Queues the job of a dead letter again, then deletes the letter.
///
/// # Errors
/// The broker rejected the deletion.
pub async fn replay(broker: &Broker, stored: &StoredLetter) -> Result<(), BrokerError> {
    let DeadLetter { run, environment, job, .. } = &stored.letter;
    let subject = broker.names.job(run, environment, job);
    broker.publish_parts(&subject, &stored.headers, &stored.payload).await;
    remove(broker, stored).await
}

/// Deletes a dead letter from the stream.
///
/// # Errors
/// The broker rejected the deletion.
pub async fn remove(broker: &Broker, stored: &StoredLetter) -> Result<(), BrokerError> {
    let stream = broker.stream().await?;
    let deleted = stream.delete_message(stored.sequence).await;
    deleted.map(|_| ()).map_err(|error| BrokerError::refused("delete a dead letter", error))
}
