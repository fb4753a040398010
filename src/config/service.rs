//! The service that samples and trains: the engine in this process, or a Tinker server.

use super::error::ConfigError;
use super::file::ConfigFile;
use super::plan::time;
use super::variables::ProcessVariables;
use minds_tinker::client::{API_KEY_ENV, Secret, check_address};
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::time::Duration;

/// The hosted Tinker service.
pub const HOSTED_URL: &str = "https://tinker.thinkingmachines.dev/services/tinker-prod";

/// The address that stands for the engine in this process.
pub const EMBEDDED: &str = "embedded";

/// Default of the longest wait for a server that does not respond.
const OUTAGE: Duration = Duration::from_secs(2 * 3600);
/// Most threads of the embedded engine.
const MOST_THREADS: usize = 512;

/// The service that samples and trains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServicePlan {
    /// The engine in this process.
    Embedded(EnginePlan),
    /// A Tinker server, reached over HTTP.
    Remote(RemotePlan),
}

/// How to reach a Tinker server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePlan {
    /// Base address of the server.
    pub base_url: String,
    /// The API key, if one is set.
    pub api_key: Option<Secret>,
    /// The environment variable that should hold a key but is not set.
    pub missing_key: Option<String>,
    /// Whether plain http to other machines is allowed.
    pub allow_insecure: bool,
    /// Longest wait for a server that does not respond.
    pub outage: Duration,
    /// Whether the model need not be in the server's list.
    pub any_model: bool,
}

/// Sizes of the embedded engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnginePlan {
    /// Number of compute threads.
    pub threads: NonZeroUsize,
    /// Bytes for the key-value cache.
    pub kv_bytes: usize,
    /// Most sequences that are decoded together.
    pub max_rows: NonZeroUsize,
}

/// What the rest of the program asks of a service, so that it need not know the kinds.
impl ServicePlan {
    /// `embedded engine`, or the address of the server.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Embedded(_) => "embedded engine",
            Self::Remote(server) => &server.base_url,
        }
    }

    /// Its name and the number of its threads, if they are in this process.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Embedded(EnginePlan { threads, .. }) => {
                let s = if threads.get() == 1 { "" } else { "s" };
                format!("{}, {threads} thread{s}", self.name())
            }
            Self::Remote(_) => self.name().into(),
        }
    }

    /// Its name and settings, without secrets.
    #[must_use]
    pub fn describe_settings(&self) -> String {
        match self {
            Self::Embedded(EnginePlan { threads, max_rows, .. }) => {
                format!("{}, {threads} threads, up to {max_rows} sequences at a time", self.name())
            }
            Self::Remote(_) if self.has_key() => format!("{}, with a key", self.name()),
            Self::Remote(_) => format!("{}, without a key", self.name()),
        }
    }

    /// Its kind and settings for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Embedded(engine) => json!({
                "kind": "embedded",
                "threads": engine.threads,
                "kv_cache_bytes": engine.kv_bytes,
                "max_rows": engine.max_rows,
            }),
            Self::Remote(server) => json!({
                "kind": "server",
                "address": server.base_url,
                "has_key": self.has_key(),
            }),
        }
    }

    /// Whether requests carry a key.
    #[must_use]
    pub fn has_key(&self) -> bool {
        matches!(self, Self::Remote(server) if server.api_key.is_some())
    }

    /// Sizes of the engine in this process, if the weights of the model are loaded here. Otherwise only the tokenizer
    /// of the model is needed.
    #[must_use]
    pub fn engine(&self) -> Option<&EnginePlan> {
        match self {
            Self::Embedded(engine) => Some(engine),
            Self::Remote(_) => None,
        }
    }

    /// Whether it deletes saved weights by itself when their time is over.
    #[must_use]
    pub fn expires_checkpoints(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// Checks the keys and fills in defaults.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub(super) fn decide(
        file: &ConfigFile,
        variables: &ProcessVariables,
        bad: &dyn Fn(&str, String) -> ConfigError,
    ) -> Result<Self, ConfigError> {
        let written = file.tinker.base_url.clone().filter(|url| !url.is_empty());
        let base_url = written.unwrap_or_else(|| HOSTED_URL.into());
        if base_url == EMBEDDED {
            let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
            let some = |key: &str, value: Option<usize>, default: NonZeroUsize| {
                value.map_or(Ok(default), super::at_least_one).map_err(|problem| bad(key, problem))
            };
            let mib = file.engine.kv_cache_mib.unwrap_or(768);
            if file.engine.threads.is_some_and(|threads| threads > MOST_THREADS) {
                return Err(bad("engine.threads", format!("must be at most {MOST_THREADS}")));
            }
            let default_rows = NonZeroUsize::MIN.saturating_add(63);
            return Ok(Self::Embedded(EnginePlan {
                threads: some("engine.threads", file.engine.threads, cores)?,
                kv_bytes: mib.checked_mul(1 << 20).filter(|bytes| *bytes > 0).ok_or_else(|| {
                    bad("engine.kv_cache_mib", format!("is {mib}, it must be at least 1 and fit into memory"))
                })?,
                max_rows: some("engine.max_rows", file.engine.max_rows, default_rows)?,
            }));
        }
        if !(base_url.starts_with("http://") || base_url.starts_with("https://")) {
            // The value is not repeated: a mistyped address may contain a key.
            let problem = "is wrong: it must be \"embedded\" or start with https:// or http://";
            return Err(bad("tinker.base_url", problem.into()));
        }
        if let Err(error) = check_address(&base_url) {
            let problem =
                format!("is wrong: {error} (the variable that `tinker.api_key_env` names holds the key)");
            return Err(bad("tinker.base_url", problem));
        }
        let named = file.tinker.api_key_env.as_deref();
        let variable = named.unwrap_or(API_KEY_ENV);
        let given = |key: &String| !key.is_empty();
        let written = file.tinker.api_key.clone().filter(given);
        let api_key = written.or_else(|| variables.get(variable).filter(given)).map(Secret::new);
        // A missing key is reported when the run starts: a config is valid or invalid on every machine alike.
        let missing_key =
            (api_key.is_none() && (named.is_some() || base_url == HOSTED_URL)).then(|| variable.to_owned());
        let allow_insecure = file.tinker.allow_insecure.unwrap_or(false);
        let outage =
            file.tinker.outage.as_deref().map(time).transpose().map_err(|p| bad("tinker.outage", p))?;
        let outage = outage.unwrap_or(OUTAGE);
        let any_model = file.tinker.any_model.unwrap_or(false);
        Ok(Self::Remote(RemotePlan { base_url, api_key, missing_key, allow_insecure, outage, any_model }))
    }
}
