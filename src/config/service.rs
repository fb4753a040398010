//! The service that samples and trains: the engine in this process, or a Tinker server.

use super::choice::chosen;
use super::credentials;
use super::error::{KeyProblem, at_most};
use super::file::{ConfigFile, EngineConfig, TinkerConfig};
use super::plan::time;
use super::variables::ProcessVariables;
use minds_core::service::SamplerWeights;
use minds_engine::runtime::SwapKv;
use minds_stages::service::deadlines::Deadlines;
use minds_stages::service::retry::Retry;
use minds_tinker::client::{API_KEY_ENV, CREDENTIAL_COMMAND_ENV, Secret, check_address};
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
const MOST_THREADS: NonZeroUsize = NonZeroUsize::new(512).expect("512 is not 0");
const MAX_ROWS: NonZeroUsize = NonZeroUsize::new(64).expect("64 is not 0");
/// Time that the pipeline allows a request beyond the client's own limits.
const MARGIN: Duration = Duration::from_secs(60);

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
    /// Command that prints the key: that of `TINKER_CREDENTIAL_CMD`.
    pub credential_command: Option<Secret>,
    /// The environment variable that should hold a key but is not set.
    pub missing_key: Option<String>,
    /// Project of the session: that of `TINKER_PROJECT_ID`.
    pub project_id: Option<String>,
    /// Tags of the session besides the name of the config: those of `TINKER_TAGS`.
    pub tags: Vec<String>,
    /// Whether plain http to other machines is allowed.
    pub allow_insecure: bool,
    /// Longest wait for a server that does not respond.
    pub outage: Duration,
    /// Whether the model need not be in the server's list.
    pub any_model: bool,
    /// Most sample requests and logprob queries in flight; `None` for as many as the server allows.
    pub max_sample_requests: Option<NonZeroUsize>,
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
    /// What becomes of keys and values when in-flight weights are replaced.
    pub swap_kv: SwapKv,
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

    /// Whether it is Tinker's hosted service.
    #[must_use]
    pub fn is_hosted(&self) -> bool {
        matches!(self, Self::Remote(server) if server.base_url == HOSTED_URL)
    }

    /// Whether requests carry a key.
    #[must_use]
    pub fn has_key(&self) -> bool {
        matches!(self, Self::Remote(server) if server.api_key.is_some() || server.credential_command.is_some())
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

    /// Checks the `[tinker]` and `[engine]` tables and fills in defaults.
    ///
    /// # Errors
    /// The invalid key, and what is wrong with it.
    pub(super) fn decide(file: &ConfigFile, variables: &ProcessVariables) -> Result<Self, KeyProblem> {
        let written = file.tinker.base_url.as_deref().filter(|url| !url.is_empty());
        if chosen(file.engine.kv) != SwapKv::default() {
            let problem = match (chosen(file.trainer.weights), written) {
                (SamplerWeights::Snapshot, _) => Some("has no effect without trainer.weights = \"inflight\""),
                (_, Some(EMBEDDED)) => None,
                _ => Some("has no effect: only the embedded engine has a choice, a server decides by itself"),
            };
            if let Some(problem) = problem {
                return Err(KeyProblem::new("engine.kv", problem));
            }
        }
        match written.unwrap_or(HOSTED_URL) {
            EMBEDDED => engine(&file.engine).map(Self::Embedded),
            base_url => remote(&file.tinker, base_url, variables).map(Self::Remote),
        }
    }

    /// Retry policy for a failing service. A server's client has limits of its own, and requests that it gives up are
    /// not retried; the pipeline's limits apply if the client does not keep its own.
    #[must_use]
    pub fn retry(&self) -> Retry {
        let usual = Deadlines::default();
        let deadlines = match self {
            Self::Embedded(_) => usual,
            // The server may be unreachable before it accepts a request, and again before it returns the result.
            Self::Remote(server) => Deadlines {
                sampling: usual.sampling + 2 * server.outage + MARGIN,
                training: usual.training + 2 * server.outage + MARGIN,
            },
        };
        Retry { deadlines, ..Retry::default() }
    }
}

fn engine(engine: &EngineConfig) -> Result<EnginePlan, KeyProblem> {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mib = engine.kv_cache_mib.map_or(768, NonZeroUsize::get);
    let too_much = || KeyProblem::new("engine.kv_cache_mib", format!("is {mib}; it must fit into memory"));
    Ok(EnginePlan {
        threads: engine
            .threads
            .map_or(Ok(cores), |threads| at_most("engine.threads", threads, MOST_THREADS))?,
        kv_bytes: mib.checked_mul(1 << 20).ok_or_else(too_much)?,
        max_rows: engine.max_rows.unwrap_or(MAX_ROWS),
        swap_kv: chosen(engine.kv),
    })
}

fn remote(
    tinker: &TinkerConfig,
    base_url: &str,
    variables: &ProcessVariables,
) -> Result<RemotePlan, KeyProblem> {
    if !(base_url.starts_with("http://") || base_url.starts_with("https://")) {
        // The value is not repeated: a mistyped address may contain a key.
        let problem = "is wrong: it must be \"embedded\" or start with https:// or http://";
        return Err(KeyProblem::new("tinker.base_url", problem));
    }
    check_address(base_url).map_err(|error| {
        let problem =
            format!("is wrong: {error} (the variable that `tinker.api_key_env` names holds the key)");
        KeyProblem::new("tinker.base_url", problem)
    })?;
    let named = tinker.api_key_env.as_deref();
    let variable = named.unwrap_or(API_KEY_ENV);
    let given = |key: &String| !key.is_empty();
    let written = tinker.api_key.clone().filter(given);
    let api_key = written.or_else(|| variables.get(variable).filter(given)).map(Secret::new);
    // A key that the config names is the only one that this server is to see.
    let credential_command = match named {
        None => variables.get(CREDENTIAL_COMMAND_ENV).filter(given).map(Secret::new),
        Some(_) => None,
    };
    let api_key = match api_key {
        // The stored key belongs to the hosted service, so no other server is sent it.
        None if named.is_none() && credential_command.is_none() && base_url == HOSTED_URL => {
            credentials::stored_key(variables)?
        }
        key => key,
    };
    let tags = variables.get("TINKER_TAGS").unwrap_or_default();
    // A missing key is reported when the run starts: a config is valid or invalid on every machine alike.
    let needs_key = named.is_some() || base_url == HOSTED_URL;
    Ok(RemotePlan {
        base_url: base_url.to_owned(),
        missing_key: (api_key.is_none() && credential_command.is_none() && needs_key)
            .then(|| variable.to_owned()),
        api_key,
        credential_command,
        project_id: variables.get("TINKER_PROJECT_ID").filter(given),
        tags: tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
        allow_insecure: tinker.allow_insecure.unwrap_or(false),
        outage: time("tinker.outage", tinker.outage.as_deref())?.unwrap_or(OUTAGE),
        any_model: tinker.any_model.unwrap_or(false),
        max_sample_requests: tinker.max_sample_requests,
    })
}
