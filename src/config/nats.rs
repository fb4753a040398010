//! The `[nats]` table: the broker between a run and its workers.

use super::environments::LONGEST_S;
use super::error::{KeyProblem, at_most};
use super::file::{ConfigFile, NatsConfig};
use super::variables::ProcessVariables;
use minds_stages::remote::{BrokerOptions, StreamNames, StreamSettings};
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

/// Where rewards are computed and self-driven environments run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// In the run's process and its child processes.
    #[default]
    Local,
    /// On workers that are connected to the run by a NATS broker.
    Nats,
}

/// Default name of the stream.
pub const STREAM: &str = "minds";
const ACK_WAIT_S: NonZeroU64 = NonZeroU64::new(30).expect("30 is not 0");
const MAX_DELIVER: NonZeroU64 = NonZeroU64::new(5).expect("5 is not 0");
const BUFFER_MIB: NonZeroUsize = NonZeroUsize::new(64).expect("64 is not 0");
/// Upper limit of `nats.buffer_mib`.
const MOST_BUFFER_MIB: NonZeroUsize = NonZeroUsize::new(2048).expect("2048 is not 0");
/// Most copies of a message that JetStream supports.
const MOST_REPLICAS: NonZeroUsize = NonZeroUsize::new(5).expect("5 is not 0");

/// Checked settings of the `[nats]` table.
#[derive(Clone, Debug)]
pub struct NatsPlan {
    /// Address and credentials of the broker, if an address is given: `simulate` and `check --offline` need none.
    broker: Option<BrokerOptions>,
    /// Names of the stream, its subjects and its consumers.
    pub names: StreamNames,
    /// Settings of the stream if the run creates it.
    pub settings: StreamSettings,
    /// Name of the run on the broker; `None` for a generated one.
    pub run: Option<String>,
    /// Time without a progress report of its worker after which a job is redelivered.
    pub ack_wait: Duration,
    /// Number of deliveries after which an unfinished job becomes a dead letter.
    pub max_deliver: u64,
    /// Most bytes of jobs that wait until the broker stores them.
    pub buffer_bytes: usize,
}

/// Environment variables of the NATS command-line client, which replace missing keys.
pub struct NatsVariables;

impl NatsVariables {
    /// Variable with the address of the broker.
    pub const URL: &'static str = "NATS_URL";
    const CREDENTIALS: &'static str = "NATS_CREDS";
    const CA: &'static str = "NATS_CA";
    const CERTIFICATE: &'static str = "NATS_CERT";
    const KEY: &'static str = "NATS_KEY";
    const USER: &'static str = "NATS_USER";
    const PASSWORD: &'static str = "NATS_PASSWORD";
}

/// Address and credentials of a broker: the given keys, else the variables of the NATS command-line client.
///
/// # Errors
/// A key is missing or invalid.
pub fn broker(
    given: &NatsConfig,
    name: &str,
    variables: &ProcessVariables,
) -> Result<BrokerOptions, KeyProblem> {
    optional_broker(given, name, variables)?.ok_or_else(missing_address)
}

fn missing_address() -> KeyProblem {
    KeyProblem::new(
        "nats.url",
        format!("is missing: give the broker's address, or set {}", NatsVariables::URL),
    )
}

/// As [`broker`], but `None` without an address.
fn optional_broker(
    given: &NatsConfig,
    name: &str,
    variables: &ProcessVariables,
) -> Result<Option<BrokerOptions>, KeyProblem> {
    let variable = |name: &str| variables.get(name).filter(|value| !value.is_empty());
    let path =
        |given: &Option<PathBuf>, name: &str| given.clone().or_else(|| variable(name).map(PathBuf::from));
    let url = given.url.clone().filter(|url| !url.is_empty()).or_else(|| variable(NatsVariables::URL));
    let certificate = path(&given.tls_cert, NatsVariables::CERTIFICATE);
    let key = path(&given.tls_key, NatsVariables::KEY);
    let tls_identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            return Err(KeyProblem::new("nats.tls_key", "is missing: a certificate needs its key"));
        }
        (None, Some(_)) => {
            return Err(KeyProblem::new("nats.tls_cert", "is missing: a key needs its certificate"));
        }
    };
    let login = variable(NatsVariables::USER).zip(variable(NatsVariables::PASSWORD));
    Ok(url.map(|url| BrokerOptions {
        credentials: path(&given.credentials, NatsVariables::CREDENTIALS),
        login,
        tls_ca: path(&given.tls_ca, NatsVariables::CA),
        tls_identity,
        ..BrokerOptions::new(url, name)
    }))
}

/// Names for the given stream, or for [`STREAM`].
///
/// # Errors
/// The name is not valid.
pub fn names(stream: Option<&str>) -> Result<StreamNames, KeyProblem> {
    let stream = stream.unwrap_or(STREAM);
    let problem = || format!("is {stream:?}: it must consist of 1 to 48 letters, digits, - and _");
    StreamNames::new(stream).ok_or_else(|| KeyProblem::new("nats.stream", problem()))
}

/// Settings of the stream if it is created.
///
/// # Errors
/// A value is out of range.
pub fn settings(nats: &NatsConfig) -> Result<StreamSettings, KeyProblem> {
    let usual = StreamSettings::default();
    let replicas = nats.replicas.unwrap_or(NonZeroUsize::MIN);
    let most = NonZeroU64::new(i64::MAX as u64).expect("the largest number is not 0");
    let max_bytes = nats.max_bytes.map(|bytes| at_most("nats.max_bytes", bytes, most)).transpose()?;
    Ok(StreamSettings {
        replicas: at_most("nats.replicas", replicas, MOST_REPLICAS)?.get(),
        max_bytes: max_bytes.map_or(usual.max_bytes, |bytes| bytes.get() as i64),
        ..usual
    })
}

impl NatsPlan {
    /// Address and credentials of the broker.
    ///
    /// # Errors
    /// No address is given.
    pub fn broker(&self) -> Result<&BrokerOptions, KeyProblem> {
        self.broker.as_ref().ok_or_else(missing_address)
    }

    /// Checks the `[nats]` table; `None` if rewards are computed in this process.
    ///
    /// # Errors
    /// A key is missing, invalid or without effect.
    pub(super) fn decide(
        file: &ConfigFile,
        variables: &ProcessVariables,
    ) -> Result<Option<Self>, KeyProblem> {
        let nats = &file.nats;
        if super::choice::chosen(file.scorer.transport) == Transport::Local {
            return match nats.url {
                Some(_) => Err(KeyProblem::new(
                    "nats.url",
                    "has no effect: set `scorer.transport = \"nats\"` as well",
                )),
                None => Ok(None),
            };
        }
        let run = nats.run.clone();
        if let Some(run) = run.as_ref().filter(|run| minds_stages::remote::token(run) != **run) {
            let problem = format!(
                "is {run:?}: it must begin with a letter or digit, and consist of letters, digits, - and _"
            );
            return Err(KeyProblem::new("nats.run", problem));
        }
        let ack_wait = at_most("nats.ack_wait_s", nats.ack_wait_s.unwrap_or(ACK_WAIT_S).get(), LONGEST_S)?;
        let buffer = at_most("nats.buffer_mib", nats.buffer_mib.unwrap_or(BUFFER_MIB), MOST_BUFFER_MIB)?;
        Ok(Some(Self {
            broker: optional_broker(nats, "minds-actors run", variables)?,
            names: names(nats.stream.as_deref())?,
            settings: settings(nats)?,
            run,
            ack_wait: Duration::from_secs(ack_wait),
            max_deliver: nats.max_deliver.unwrap_or(MAX_DELIVER).get(),
            buffer_bytes: buffer.get() << 20,
        }))
    }
}
