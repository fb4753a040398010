//! The connection to the broker, NATS with JetStream, and the stream that jobs and results lie in.
//!
//! The stream is a work queue with one message at most for each subject. The subject of a job names the job, so that a
//! job which is published again while it is queued is stored once, however much later; the same holds for its result.
//! While the broker does not answer, whatever is published waits; nothing is lost.

use super::names::StreamNames;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{
    CreateStreamErrorKind, GetStreamErrorKind, PublishError, PublishErrorKind,
};
use async_nats::jetstream::object_store::{self, ObjectStore};
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, ConnectOptions, Event, HeaderMap};
use bytes::Bytes;
use futures::StreamExt as _;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use thiserror::Error;
use tokio::io::AsyncReadExt as _;
use tracing::{info, warn};

/// Names the object that holds the body of a message.
const OBJECT: &str = "Minds-Object";
/// Room in the broker's payload limit for subject and headers, in bytes.
const ENVELOPE: usize = 1024;
/// Pause before a refused or unanswered publication is tried again; doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Longest wait for one answer of the broker.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the broker is, and as whom one connects.
#[derive(Clone)]
pub struct BrokerOptions {
    /// Addresses, separated by commas; may hold a user and a password.
    pub url: String,
    /// A file with the credentials of a user: a JWT with its key.
    pub credentials: Option<PathBuf>,
    /// User and password.
    pub login: Option<(String, String)>,
    /// Certificates of authorities to trust beside those of the system; the connection must then be encrypted.
    pub tls_ca: Option<PathBuf>,
    /// Own certificate and its key.
    pub tls_identity: Option<(PathBuf, PathBuf)>,
    /// Name of the connection, as the broker's operator sees it.
    pub name: String,
    /// Where answers come, if not below `_INBOX`, which all users may read.
    pub inbox: Option<String>,
}

impl BrokerOptions {
    /// A broker at this address, without credentials.
    #[must_use]
    pub fn new(url: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            credentials: None,
            login: None,
            tls_ca: None,
            tls_identity: None,
            name: name.into(),
            inbox: None,
        }
    }

    /// The addresses without user and password.
    #[must_use]
    pub fn address(&self) -> String {
        let bare = |url: &str| match (url.find("://"), url.rfind('@')) {
            (Some(scheme), Some(at)) if at > scheme => format!("{}://{}", &url[..scheme], &url[at + 1..]),
            (None, Some(at)) => url[at + 1..].to_owned(),
            _ => url.to_owned(),
        };
        self.url.split(',').map(|url| bare(url.trim())).collect::<Vec<_>>().join(",")
    }
}

impl fmt::Debug for BrokerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, credentials, login, tls_ca, tls_identity, name, inbox } = self;
        f.debug_struct("BrokerOptions")
            .field("url", &self.address())
            .field("credentials", credentials)
            .field("login", &login.as_ref().map(|(user, _)| user))
            .field("tls_ca", tls_ca)
            .field("tls_identity", tls_identity)
            .field("name", name)
            .field("inbox", inbox)
            .finish()
    }
}

/// Settings of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// Copies of each message on a cluster.
    pub replicas: usize,
    /// Most bytes that the stream stores; publishing waits when it is full.
    pub max_bytes: i64,
    /// Age at which a message that nobody took is deleted.
    pub max_age: Duration,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self { replicas: 1, max_bytes: 4 << 30, max_age: Duration::from_secs(7 * 24 * 3600) }
    }
}

impl StreamSettings {
    /// The stream's configuration, as the broker takes it.
    #[must_use]
    pub fn config(&self, names: &StreamNames) -> stream::Config {
        stream::Config {
            name: names.stream().into(),
            subjects: names.stored(),
            retention: RetentionPolicy::WorkQueue,
            storage: StorageType::File,
            discard: DiscardPolicy::New,
            discard_new_per_subject: true,
            max_messages_per_subject: 1,
            max_bytes: self.max_bytes,
            max_age: self.max_age,
            num_replicas: self.replicas,
            description: Some("jobs, results and dead letters of minds-actors".into()),
            ..stream::Config::default()
        }
    }
}

/// Why the broker cannot be used.
#[derive(Debug, Error)]
pub enum BrokerError {
    /// The credentials cannot be read.
    #[error("failed to read the credentials {}: {source}", .path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        source: std::io::Error,
    },
    /// There is no connection.
    #[error("failed to connect to {address}: {source}")]
    Connect {
        /// The addresses.
        address: String,
        /// The cause.
        source: async_nats::ConnectError,
    },
    /// The broker is there, without JetStream.
    #[error("{address} has no JetStream, or none for this user: start it with `nats-server --jetstream`")]
    NoJetStream {
        /// The addresses.
        address: String,
    },
    /// The stream does not exist.
    #[error("{address} has no stream `{stream}`: `minds-actors nats check` creates it")]
    NoStream {
        /// The addresses.
        address: String,
        /// Name of the stream.
        stream: String,
    },
    /// The stream exists with settings under which jobs could be lost or repeated.
    #[error("the stream `{stream}` exists with other settings: {what}")]
    WrongStream {
        /// Name of the stream.
        stream: String,
        /// The settings that differ.
        what: String,
    },
    /// The broker refused a request.
    #[error("the broker refused to {what}: {why}")]
    Refused {
        /// What was requested.
        what: String,
        /// Its answer.
        why: String,
    },
}

impl BrokerError {
    /// Whether waiting for the broker cannot mend it: the credentials or the address are wrong.
    #[must_use]
    pub fn is_final(&self) -> bool {
        use async_nats::ConnectErrorKind::{Authentication, AuthorizationViolation, ServerParse, Tls};
        match self {
            Self::Connect { source, .. } => {
                matches!(source.kind(), Authentication | AuthorizationViolation | ServerParse | Tls)
            }
            _ => true,
        }
    }

    pub(crate) fn refused(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Refused { what: what.into(), why: why.to_string() }
    }
}

/// A connection that stays: it is made again whenever it is lost.
#[derive(Clone)]
pub struct Broker {
    /// Core NATS.
    pub client: Client,
    /// JetStream.
    pub jetstream: jetstream::Context,
    /// Names below the stream.
    pub names: StreamNames,
    address: String,
    state: Arc<BrokerState>,
}

/// What is known of the connection.
#[derive(Debug, Default)]
pub struct BrokerState {
    connected: AtomicBool,
    reconnects: AtomicU64,
}

impl BrokerState {
    /// Whether there is a connection now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    /// Connections after the first.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.reconnects.load(Relaxed).saturating_sub(1)
    }

    fn note(&self, event: &Event, address: &str) {
        match event {
            Event::Connected => {
                self.connected.store(true, Relaxed);
                if self.reconnects.fetch_add(1, Relaxed) > 0 {
                    info!(broker = address, "the broker is back");
                }
            }
            Event::Disconnected => {
                self.connected.store(false, Relaxed);
                warn!(broker = address, "the broker is away: jobs and results wait");
            }
            Event::ServerError(error) => warn!(broker = address, %error, "the broker refused a request"),
            _ => {}
        }
    }
}

/// What became of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It is stored, at this position of the stream.
    Stored(u64),
    /// The stream has a message of this subject, which stays.
    Exists,
}

impl Broker {
    /// Connects.
    ///
    /// # Errors
    /// The credentials cannot be read, or there is no connection.
    pub async fn connect(options: &BrokerOptions, names: StreamNames) -> Result<Self, BrokerError> {
        let address = options.address();
        let state = Arc::new(BrokerState::default());
        let events = (state.clone(), address.clone());
        let connect = ConnectOptions::new()
            .name(&options.name)
            .max_reconnects(None)
            .request_timeout(Some(ANSWER_TIMEOUT))
            .reconnect_delay_callback(|attempt| {
                (FIRST_PAUSE * u32::try_from(attempt).unwrap_or(u32::MAX)).min(LONGEST_PAUSE)
            })
            .event_callback(move |event| {
                events.0.note(&event, &events.1);
                std::future::ready(())
            });
        let connect = match &options.credentials {
            Some(path) => connect
                .credentials_file(path)
                .await
                .map_err(|source| BrokerError::Credentials { path: path.clone(), source })?,
            None => connect,
        };
        let connect = match &options.inbox {
            Some(inbox) => connect.custom_inbox_prefix(inbox),
            None => connect,
        };
        let connect = match &options.login {
            Some((user, password)) => connect.user_and_password(user.clone(), password.clone()),
            None => connect,
        };
        let connect = match &options.tls_ca {
            Some(path) => connect.add_root_certificates(path.clone()).require_tls(true),
            None => connect,
        };
        let connect = match &options.tls_identity {
            Some((certificate, key)) => connect.add_client_certificate(certificate.clone(), key.clone()),
            None => connect,
        };
        let addresses: Vec<&str> = options.url.split(',').map(str::trim).collect();
        let connected = connect.connect(addresses).await;
        let client = connected.map_err(|source| BrokerError::Connect { address: address.clone(), source })?;
        let jetstream = jetstream::context::ContextBuilder::new()
            .timeout(ANSWER_TIMEOUT)
            .ack_timeout(ANSWER_TIMEOUT)
            .backpressure_on_inflight(true)
            .build(client.clone());
        Ok(Self { client, jetstream, names, address, state })
    }

    /// The addresses, without credentials.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What is known of the connection.
    #[must_use]
    pub fn state(&self) -> &Arc<BrokerState> {
        &self.state
    }

    /// The stream, which is created if it does not exist and this user may do so.
    ///
    /// # Errors
    /// It exists with unfit settings, or cannot be read or created.
    pub async fn open_stream(&self, settings: StreamSettings) -> Result<stream::Stream, BrokerError> {
        match self.stream().await {
            Err(BrokerError::NoStream { .. }) => {}
            found => return found,
        }
        let created = self.jetstream.create_stream(settings.config(&self.names)).await;
        created.map_err(|error| match error.kind() {
            CreateStreamErrorKind::JetStreamUnavailable => self.no_jetstream(),
            kind => BrokerError::refused(format!("create the stream `{}`", self.names.stream()), kind),
        })
    }

    /// The stream.
    ///
    /// # Errors
    /// It does not exist, has unfit settings, or cannot be read.
    pub async fn stream(&self) -> Result<stream::Stream, BrokerError> {
        let name = self.names.stream();
        let found = self.jetstream.get_stream(name).await.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(error) => match error.error_code() {
                ErrorCode::STREAM_NOT_FOUND => {
                    BrokerError::NoStream { address: self.address.clone(), stream: name.into() }
                }
                ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
                    self.no_jetstream()
                }
                _ => BrokerError::refused(format!("describe the stream `{name}`"), error),
            },
            GetStreamErrorKind::Request => {
                let why =
                    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                if why.contains("does not exist") {
                    return self.no_jetstream();
                }
                BrokerError::refused(format!("describe the stream `{name}`"), why)
            }
            kind => BrokerError::refused(format!("describe the stream `{name}`"), kind),
        })?;
        let wrong = self.unfit(&found.cached_info().config);
        if wrong.is_empty() {
            return Ok(found);
        }
        Err(BrokerError::WrongStream { stream: name.into(), what: wrong.join(", ") })
    }

    fn no_jetstream(&self) -> BrokerError {
        BrokerError::NoJetStream { address: self.address.clone() }
    }

    /// The settings of a stream under which jobs could be lost or repeated.
    fn unfit(&self, found: &stream::Config) -> Vec<String> {
        let mut subjects = found.subjects.clone();
        let mut wanted = self.names.stored();
        subjects.sort();
        wanted.sort();
        let checks = [
            (found.retention != RetentionPolicy::WorkQueue, "retention must be workqueue".to_owned()),
            (found.discard != DiscardPolicy::New, "discard must be new".into()),
            (!found.discard_new_per_subject, "discard_new_per_subject must be on".into()),
            (found.max_messages_per_subject != 1, "max_msgs_per_subject must be 1".into()),
            (subjects != wanted, format!("subjects must be {}", wanted.join(", "))),
        ];
        checks.into_iter().filter_map(|(wrong, what)| wrong.then_some(what)).collect()
    }

    /// The object store of a run, which is created if needed.
    ///
    /// # Errors
    /// The broker refused.
    pub async fn open_bucket(&self, run: &str, settings: StreamSettings) -> Result<ObjectStore, BrokerError> {
        let bucket = self.names.bucket(run);
        if let Ok(found) = self.jetstream.get_object_store(&bucket).await {
            return Ok(found);
        }
        let config = object_store::Config {
            bucket: bucket.clone(),
            description: Some("messages of minds-actors above the payload limit".into()),
            max_age: settings.max_age,
            max_bytes: settings.max_bytes,
            num_replicas: settings.replicas,
            ..object_store::Config::default()
        };
        let created = self.jetstream.create_object_store(config).await;
        created.map_err(|error| BrokerError::refused(format!("create the object store `{bucket}`"), error))
    }

    /// Makes a message of these bytes. What exceeds the payload limit is put into the bucket of the run, under this name.
    ///
    /// # Errors
    /// The bucket does not take it.
    pub async fn pack(&self, run: &str, object: &str, body: Bytes) -> Result<PackedMessage, BrokerError> {
        if body.len() + ENVELOPE <= self.client.max_payload() {
            return Ok(PackedMessage { headers: HeaderMap::new(), body });
        }
        let bucket = self.bucket(run).await?;
        let put = bucket.put(object, &mut &*body).await;
        put.map_err(|error| BrokerError::refused(format!("store the object {object}"), error))?;
        let mut headers = HeaderMap::new();
        headers.insert(OBJECT, object);
        Ok(PackedMessage { headers, body: Bytes::new() })
    }

    /// The bytes of a message, wherever they lie.
    ///
    /// # Errors
    /// The object is gone or cannot be read.
    pub async fn unpack(&self, run: &str, message: &async_nats::Message) -> Result<Bytes, BrokerError> {
        self.unpack_parts(run, message.headers.as_ref(), &message.payload).await
    }

    /// As [`Broker::unpack`], for headers and a body.
    ///
    /// # Errors
    /// The object is gone or cannot be read.
    pub async fn unpack_parts(
        &self,
        run: &str,
        headers: Option<&HeaderMap>,
        body: &Bytes,
    ) -> Result<Bytes, BrokerError> {
        let Some(object) = headers.and_then(object_name) else { return Ok(body.clone()) };
        let refused = |why: &dyn fmt::Display| BrokerError::refused(format!("read the object {object}"), why);
        let bucket = self.bucket(run).await?;
        let mut found = bucket.get(object).await.map_err(|error| refused(&error))?;
        let mut body = Vec::new();
        found.read_to_end(&mut body).await.map_err(|error| refused(&error))?;
        Ok(body.into())
    }

    /// Deletes the object of a message that nobody will read again, if it has one.
    pub async fn discard_object(&self, run: &str, object: &str) {
        // What stays is deleted with the bucket, or by its age.
        if let Ok(bucket) = self.bucket(run).await {
            let _ = bucket.delete(object).await;
        }
    }

    async fn bucket(&self, run: &str) -> Result<ObjectStore, BrokerError> {
        let bucket = self.names.bucket(run);
        let found = self.jetstream.get_object_store(&bucket).await;
        found.map_err(|error| BrokerError::refused(format!("open the object store `{bucket}`"), error))
    }

    /// Stores a message in the stream, once, however long that takes: while the broker is away or the stream is full,
    /// it is tried again.
    pub async fn publish(&self, subject: &str, message: &PackedMessage) -> Published {
        self.publish_parts(subject, &message.headers, &message.body).await
    }

    /// As [`Broker::publish`], for headers and a body.
    pub async fn publish_parts(&self, subject: &str, headers: &HeaderMap, body: &Bytes) -> Published {
        let mut pause = FIRST_PAUSE;
        let mut waits = false;
        loop {
            let sent =
                self.jetstream.publish_with_headers(subject.to_owned(), headers.clone(), body.clone()).await;
            let stored = match sent {
                Ok(acknowledged) => acknowledged.await,
                Err(error) => Err(error),
            };
            match stored {
                Ok(stored) => return Published::Stored(stored.sequence),
                Err(error) if subject_exists(&error) => return Published::Exists,
                Err(error) => {
                    if !std::mem::replace(&mut waits, true) {
                        warn!(broker = self.address, subject, why = %full_error(&error), "a message waits to be stored");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }
}

/// A message in the form in which it is published.
#[derive(Clone, Debug)]
pub struct PackedMessage {
    headers: HeaderMap,
    body: Bytes,
}

impl PackedMessage {
    /// Whether the body lies in the object store.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.headers.get(OBJECT).is_some()
    }

    /// Headers and body.
    #[must_use]
    pub fn into_parts(self) -> (HeaderMap, Bytes) {
        (self.headers, self.body)
    }
}

/// Name of the object that holds the body of a message.
#[must_use]
pub fn object_of(message: &async_nats::Message) -> Option<&str> {
    object_name(message.headers.as_ref()?)
}

fn object_name(headers: &HeaderMap) -> Option<&str> {
    headers.get(OBJECT).map(async_nats::HeaderValue::as_str)
}

fn full_error(error: &PublishError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Whether a publication was refused because the stream has a message of its subject. The broker has one code for all
/// refusals to store, so that the text decides.
fn subject_exists(error: &PublishError) -> bool {
    error.kind() == PublishErrorKind::Other
        && full_error(error).contains("maximum messages per subject exceeded")
}

/// Sends a job of a run that does not exist through the stream and back, and removes every trace of it.
///
/// # Errors
/// What the broker refused.
pub async fn probe(broker: &Broker) -> Result<(), BrokerError> {
    let run = format!("probe-{}", broker.client.new_inbox().rsplit(['.', '_']).next().unwrap_or_default());
    let names = &broker.names;
    let consumer = names.job_consumer(&run, "probe");
    let config = pull::Config {
        durable_name: Some(consumer.clone()),
        filter_subject: names.jobs(&run, "probe"),
        ack_policy: AckPolicy::Explicit,
        ..pull::Config::default()
    };
    let made: Result<PullConsumer, _> =
        broker.jetstream.create_consumer_on_stream(config, names.stream()).await;
    let made = made.map_err(|error| BrokerError::refused("make a consumer", error))?;
    let passed = pass_one(broker, &run, &made).await;
    let removed = broker.jetstream.delete_consumer_from_stream(&consumer, names.stream()).await;
    passed?;
    removed.map(|_| ()).map_err(|error| BrokerError::refused("delete a consumer", error))
}

/// Publishes a message, takes it from the consumer, and acknowledges it.
async fn pass_one(broker: &Broker, run: &str, consumer: &PullConsumer) -> Result<(), BrokerError> {
    let subject = broker.names.job(run, "probe", "1");
    let sent = broker.jetstream.publish(subject, Bytes::from_static(b"probe")).await;
    let stored = match sent {
        Ok(acknowledged) => acknowledged.await,
        Err(error) => Err(error),
    };
    stored.map_err(|error| BrokerError::refused("store a job", full_error(&error)))?;
    let taking = consumer.batch().max_messages(1).expires(ANSWER_TIMEOUT).messages().await;
    let mut taking = taking.map_err(|error| BrokerError::refused("hand out a job", error))?;
    let message =
        taking.next().await.ok_or_else(|| BrokerError::refused("hand out a job", "it came not back"))?;
    let message = message.map_err(|error| BrokerError::refused("hand out a job", error))?;
    message.double_ack().await.map_err(|error| BrokerError::refused("acknowledge a job", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_in_no_text() {
        let login = Some(("run".to_owned(), "hunter2".to_owned()));
        let options = BrokerOptions {
            login,
            ..BrokerOptions::new("nats://me:s3cret@a:4222, tls://b:4222,c:pw@d:1", "test")
        };
        assert_eq!(options.address(), "nats://a:4222,tls://b:4222,d:1");
        let told = format!("{options:?}");
        assert!(["s3cret", "hunter2", "pw@"].iter().all(|secret| !told.contains(secret)), "{told}");
    }
}
