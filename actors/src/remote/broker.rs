//! The connection to the broker, NATS with JetStream, and the stream that holds jobs and results.
//!
//! The stream is a work queue with at most one message per subject. The subject of a job contains the job's id, so a
//! job that is published again while it is queued is stored once, no matter how much later. The same holds for results.
//! A publication waits while the broker is unreachable, so no message is lost.

use super::names::StreamNames;
use async_nats::jetstream::context::{
    CreateStreamErrorKind, GetStreamErrorKind, PublishError, PublishErrorKind,
};
use async_nats::jetstream::object_store::{self, GetErrorKind, ObjectMetadata, ObjectStore};
use async_nats::jetstream::stream::{self, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, ConnectOptions, Event, HeaderMap, ServerAddr};
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use thiserror::Error;
use tokio::io::AsyncReadExt as _;
use tracing::{info, warn};

/// Largest part of an object in one message, in bytes.
const LARGEST_CHUNK: usize = 128 << 10;
/// Header with the name of the object that holds the message's body.
const OBJECT: &str = "Minds-Object";
/// Least payload limit of a broker, in bytes.
const LEAST_PAYLOAD: usize = 16 << 10;
/// Bytes of the broker's payload limit that are reserved for subject and headers.
const ENVELOPE: usize = 1024;
/// Pause before a rejected or unanswered publication is retried; it doubles up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Time between two pings. A connection that answers none of two counts as lost, even if the system reports no error.
const PING_EVERY: Duration = Duration::from_secs(10);
/// Timeout of one request to the broker.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Address of the broker and the credentials of the connection.
#[derive(Clone)]
pub struct BrokerOptions {
    /// Addresses, separated by commas. Each may contain a user and a password.
    pub url: String,
    /// File with a user's credentials: a JWT and its key.
    pub credentials: Option<PathBuf>,
    /// User name and password, in this order.
    pub login: Option<(String, String)>,
    /// CA certificates to trust in addition to those of the system. Requires an encrypted connection.
    pub tls_ca: Option<PathBuf>,
    /// Paths of the client certificate and of its key.
    pub tls_identity: Option<(PathBuf, PathBuf)>,
    /// Name of the connection in the broker's monitoring.
    pub name: String,
    /// Prefix of the subjects that receive replies. `None`: `_INBOX`, which all users may read.
    pub inbox: Option<String>,
}

impl BrokerOptions {
    /// Options for a broker at this address, without credentials.
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

    /// The addresses, without user and password.
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

impl BrokerOptions {
    /// User and password of the first address that has them, else those given apart. The client ignores those in
    /// addresses.
    fn login_to_use(&self) -> Option<(String, String)> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let in_addresses = self.url.split(',').find_map(|url| {
            let address: ServerAddr = url.trim().parse().ok()?;
            Some((decoded(address.username()?), decoded(address.password()?)))
        });
        in_addresses.or_else(|| self.login.clone())
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
    /// Copies of each message in a cluster.
    pub replicas: usize,
    /// Most bytes that the stream stores. Publishing waits while it is full.
    pub max_bytes: i64,
    /// Age at which the broker deletes an unacknowledged message.
    pub max_age: Duration,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self { replicas: 1, max_bytes: 4 << 30, max_age: Duration::from_secs(7 * 24 * 3600) }
    }
}

impl StreamSettings {
    /// The configuration of the stream in the broker's format.
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
        /// Path of the credentials file.
        path: PathBuf,
        /// Why it cannot be read.
        source: std::io::Error,
    },
    /// The connection could not be established.
    #[error("failed to connect to {address}: {source}")]
    Connect {
        /// Addresses of the broker, without credentials.
        address: String,
        /// Error of the NATS client.
        source: async_nats::ConnectError,
    },
    /// The broker does not accept the user.
    #[error(
        "{address} does not accept the credentials: set NATS_USER and NATS_PASSWORD, or NATS_CREDS, to those of a user \
         of the broker"
    )]
    Unauthorized {
        /// Addresses of the broker, without credentials.
        address: String,
    },
    /// A bug of the dispatcher.
    #[error("a task that hands out jobs has panicked, which is a bug: its message is in the log")]
    Panicked,
    /// The broker did not answer in time.
    #[error("{address} did not answer within {} s", .limit.as_secs())]
    Silent {
        /// Addresses of the broker, without credentials.
        address: String,
        /// Time that it had.
        limit: Duration,
    },
    /// The broker's payload limit is too small for announcements and for parts of large messages.
    #[error(
        "{address} accepts messages of at most {limit} bytes: set `max_payload` of the server to {LEAST_PAYLOAD} or more"
    )]
    SmallPayload {
        /// Addresses of the broker, without credentials.
        address: String,
        /// Its payload limit, in bytes.
        limit: usize,
    },
    /// The broker answers, but JetStream is disabled for it or for this user.
    #[error(
        "{address} has no JetStream, or does not allow it for this user: start it with `nats-server --jetstream`"
    )]
    NoJetStream {
        /// Addresses of the broker, without credentials.
        address: String,
    },
    /// The stream does not exist.
    #[error("{address} has no stream `{stream}`: `minds-actors nats check` creates it")]
    NoStream {
        /// Addresses of the broker, without credentials.
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
    /// A large message refers to an object that was deleted.
    #[error("the object {object} is gone")]
    ObjectGone {
        /// Name of the object.
        object: String,
    },
    /// The broker rejected a request.
    #[error("the broker refused to {what}: {why}")]
    Refused {
        /// The request, as a verb with its object.
        what: String,
        /// The broker's reason, as text.
        why: String,
    },
}

impl BrokerError {
    /// Whether retrying cannot succeed, for example because the credentials or the address are wrong.
    #[must_use]
    pub fn is_final(&self) -> bool {
        use async_nats::ConnectErrorKind::{ServerParse, Tls};
        match self {
            Self::Connect { source, .. } => matches!(source.kind(), ServerParse | Tls),
            _ => true,
        }
    }

    /// The error of a connection that was not established.
    fn connect(address: String, source: async_nats::ConnectError) -> Self {
        use async_nats::ConnectErrorKind::{Authentication, AuthorizationViolation};
        match source.kind() {
            Authentication | AuthorizationViolation => Self::Unauthorized { address },
            _ => Self::Connect { address, source },
        }
    }

    pub(crate) fn refused(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Refused { what: what.into(), why: why.to_string() }
    }
}

/// A connection that reconnects automatically when it is lost.
#[derive(Clone)]
pub struct Broker {
    /// The client for core NATS.
    pub client: Client,
    /// The client for JetStream.
    pub jetstream: jetstream::Context,
    /// Names of the stream, its subjects and its consumers.
    pub names: StreamNames,
    address: String,
    /// Whether replies arrive where only the users of one run may read.
    has_own_inbox: bool,
    state: Arc<BrokerState>,
}

/// State of the connection.
#[derive(Debug, Default)]
pub struct BrokerState {
    connected: AtomicBool,
    reconnects: AtomicU64,
    /// Whether a refused connection was reported since the last one.
    refused: AtomicBool,
}

impl BrokerState {
    /// Whether the connection is established now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    /// Number of connections after the first.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.reconnects.load(Relaxed).saturating_sub(1)
    }

    fn note(&self, event: &Event, address: &str) {
        match event {
            Event::Connected => {
                self.connected.store(true, Relaxed);
                self.refused.store(false, Relaxed);
                if self.reconnects.fetch_add(1, Relaxed) > 0 {
                    info!(broker = address, "reconnected to the broker");
                }
            }
            Event::Disconnected => {
                self.connected.store(false, Relaxed);
                warn!(broker = address, "lost the connection to the broker: jobs and results wait");
            }
            Event::ClientError(error) if !self.refused.swap(true, Relaxed) => {
                warn!(broker = address, %error, "the broker does not accept the connection: trying again");
            }
            Event::ServerError(error) => warn!(broker = address, %error, "the broker rejected a request"),
            _ => {}
        }
    }
}

/// Result of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The broker stored the message at this position of the stream.
    Stored(u64),
    /// The stream already has a message with this subject, and keeps that one.
    Exists,
}

impl Broker {
    /// Connects to the broker.
    ///
    /// # Errors
    /// The credentials cannot be read, the connection fails, or the broker's payload limit is too small.
    pub async fn connect(options: &BrokerOptions, names: StreamNames) -> Result<Self, BrokerError> {
        let address = options.address();
        let state = Arc::new(BrokerState::default());
        let events = (state.clone(), address.clone());
        let connect = ConnectOptions::new()
            .name(&options.name)
            .max_reconnects(None)
            .request_timeout(Some(ANSWER_TIMEOUT))
            .ping_interval(PING_EVERY)
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
        let connect = match options.login_to_use() {
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
        let client = connected.map_err(|source| BrokerError::connect(address.clone(), source))?;
        let limit = client.server_info().max_payload;
        if limit < LEAST_PAYLOAD {
            return Err(BrokerError::SmallPayload { address, limit });
        }
        let jetstream = jetstream::context::ContextBuilder::new()
            .timeout(ANSWER_TIMEOUT)
            .ack_timeout(ANSWER_TIMEOUT)
            .backpressure_on_inflight(true)
            .build(client.clone());
        Ok(Self { client, jetstream, names, address, has_own_inbox: options.inbox.is_some(), state })
    }

    /// Like [`Broker::connect`], but with a time limit.
    ///
    /// # Errors
    /// Those of [`Broker::connect`], or the broker did not answer in time.
    pub async fn connect_within(
        limit: Duration,
        options: &BrokerOptions,
        names: StreamNames,
    ) -> Result<Self, BrokerError> {
        let connecting = tokio::time::timeout(limit, Self::connect(options, names)).await;
        connecting.unwrap_or_else(|_| Err(BrokerError::Silent { address: options.address(), limit }))
    }

    /// Whether the server that this client is connected to has JetStream. A cluster may have it elsewhere.
    #[must_use]
    pub fn has_jetstream(&self) -> bool {
        self.client.server_info().jetstream
    }

    /// The addresses, without credentials.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// State of the connection.
    #[must_use]
    pub fn state(&self) -> &Arc<BrokerState> {
        &self.state
    }

    /// Returns the stream. Creates it if it does not exist.
    ///
    /// # Errors
    /// The stream exists with incompatible settings, or this user cannot read or create it.
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

    /// Returns the existing stream.
    ///
    /// # Errors
    /// The stream does not exist, has incompatible settings, or cannot be read.
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
                let hint = match self.has_own_inbox {
                    false => "; a user with the permissions of one run must name it: `--run RUN`",
                    true => "",
                };
                let why = format!("{why}{hint}");
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

    /// Returns the settings of a stream under which jobs could be lost or repeated.
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

    /// Returns the object store of a run. Creates it if it does not exist.
    ///
    /// # Errors
    /// The broker rejected the request.
    pub async fn open_bucket(&self, run: &str, settings: StreamSettings) -> Result<ObjectStore, BrokerError> {
        let bucket = self.names.bucket(run);
        if let Ok(found) = self.jetstream.get_object_store(&bucket).await {
            return Ok(found);
        }
        let config = object_store::Config {
            bucket: bucket.clone(),
            description: Some("messages of minds-actors above the payload limit".into()),
            max_age: settings.max_age,
            // No limit, for the broker reserves one when the store is created.
            num_replicas: settings.replicas,
            ..object_store::Config::default()
        };
        let created = self.jetstream.create_object_store(config).await;
        created.map_err(|error| BrokerError::refused(format!("create the object store `{bucket}`"), error))
    }

    /// Packs these bytes into a message. A body above the payload limit is stored in the run's bucket as `object`.
    ///
    /// # Errors
    /// The bucket rejects the object.
    pub async fn pack(&self, run: &str, object: &str, body: Bytes) -> Result<PackedMessage, BrokerError> {
        if body.len() + ENVELOPE <= self.client.max_payload() {
            return Ok(PackedMessage { headers: HeaderMap::new(), body });
        }
        let bucket = self.bucket(run).await?;
        // The default size of a chunk exceeds the payload limit of some brokers.
        let chunk_size = Some(LARGEST_CHUNK.min(self.client.max_payload() / 2));
        let metadata = ObjectMetadata { name: object.to_owned(), chunk_size, ..ObjectMetadata::default() };
        let put = bucket.put(metadata, &mut &*body).await;
        put.map_err(|error| BrokerError::refused(format!("store the object {object}"), error))?;
        let mut headers = HeaderMap::new();
        headers.insert(OBJECT, object);
        Ok(PackedMessage { headers, body: Bytes::new() })
    }

    /// Returns the bytes of a message, from its payload or from the object that its header names.
    ///
    /// # Errors
    /// The object does not exist or cannot be read.
    pub async fn unpack(&self, run: &str, message: &async_nats::Message) -> Result<Bytes, BrokerError> {
        self.unpack_parts(run, message.headers.as_ref(), &message.payload).await
    }

    /// Like [`Broker::unpack`], for headers and a body.
    ///
    /// # Errors
    /// The object does not exist or cannot be read.
    pub async fn unpack_parts(
        &self,
        run: &str,
        headers: Option<&HeaderMap>,
        body: &Bytes,
    ) -> Result<Bytes, BrokerError> {
        let Some(object) = headers.and_then(object_name) else { return Ok(body.clone()) };
        let refused = |why: &dyn fmt::Display| BrokerError::refused(format!("read the object {object}"), why);
        let bucket = self.bucket(run).await?;
        let mut found = bucket.get(object).await.map_err(|error| match error.kind() {
            GetErrorKind::NotFound => BrokerError::ObjectGone { object: object.to_owned() },
            _ => refused(&error),
        })?;
        let mut body = Vec::new();
        found.read_to_end(&mut body).await.map_err(|error| refused(&error))?;
        Ok(body.into())
    }

    /// Deletes the object of a message that will not be read again.
    pub async fn discard_object(&self, run: &str, object: &str) {
        // If this fails, the object is deleted with the bucket or at its maximum age.
        if let Ok(bucket) = self.bucket(run).await {
            drop(bucket.delete(object).await);
        }
    }

    async fn bucket(&self, run: &str) -> Result<ObjectStore, BrokerError> {
        let bucket = self.names.bucket(run);
        let found = self.jetstream.get_object_store(&bucket).await;
        found.map_err(|error| BrokerError::refused(format!("open the object store `{bucket}`"), error))
    }

    /// Stores a message in the stream exactly once. Retries without a limit while the broker is unreachable or the
    /// stream is full.
    pub async fn publish(&self, subject: &str, message: &PackedMessage) -> Published {
        self.publish_parts(subject, &message.headers, &message.body).await
    }

    /// Like [`Broker::publish`], for headers and a body.
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
                        warn!(broker = self.address, subject, why = %full_error(&error), "a message waits for the broker");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }
}

/// A message that is ready to be published.
#[derive(Clone, Debug)]
pub struct PackedMessage {
    headers: HeaderMap,
    body: Bytes,
}

impl PackedMessage {
    /// Whether the body is in the object store.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.headers.get(OBJECT).is_some()
    }

    /// Splits the message into its headers and its body.
    #[must_use]
    pub fn into_parts(self) -> (HeaderMap, Bytes) {
        (self.headers, self.body)
    }
}

/// Name of the object that holds the message's body; `None` if the body is in the message.
#[must_use]
pub fn object_of(message: &async_nats::Message) -> Option<&str> {
    object_name(message.headers.as_ref()?)
}

fn object_name(headers: &HeaderMap) -> Option<&str> {
    headers.get(OBJECT).map(async_nats::HeaderValue::as_str)
}

pub(super) fn full_error(error: &PublishError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Whether a publication was rejected because the stream already has a message with its subject. The broker uses one
/// error code for every reason not to store a message, so this function compares the text.
fn subject_exists(error: &PublishError) -> bool {
    error.kind() == PublishErrorKind::Other
        && full_error(error).contains("maximum messages per subject exceeded")
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
        assert_eq!(options.login_to_use(), Some(("me".into(), "s3cret".into())));
        let escaped = BrokerOptions { url: "nats://a:1,nats://me:p%40ss@b:1".into(), ..options.clone() };
        assert_eq!(escaped.login_to_use(), Some(("me".into(), "p@ss".into())));
        let apart = BrokerOptions { url: "nats://a:4222".into(), ..options.clone() };
        assert_eq!(apart.login_to_use(), options.login);
        let told = format!("{options:?}");
        assert!(["s3cret", "hunter2", "pw@"].iter().all(|secret| !told.contains(secret)), "{told}");
    }
}
