//! Definition of the command line.

use crate::tracker::Tracker;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use minds_core::choice::{variant, variant_names};
use minds_engine::runtime::SwapKv;
use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

/// The version, with the commit that it was built from where that is known.
pub const VERSION: &str = env!("MINDS_VERSION");

/// Reinforcement learning on language models over the Tinker API: rollouts, rewards and optimizer steps that overlap.
#[derive(Debug, Parser)]
#[command(name = "minds-actors", version = VERSION, propagate_version = true)]
pub struct Cli {
    /// How the log on standard error is written.
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub log_format: LogFormat,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text for human readers.
    #[default]
    Text,
    /// One JSON object a line; what `run` prints becomes part of it.
    Json,
}

/// All commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Trains from a config, or resumes an unfinished run.
    Run(RunArgs),
    /// Says what a config means and whether it would start, and tries the service and the model.
    Check(CheckArgs),
    /// Measures weights on the environments of weight 0, without training.
    Eval(EvalArgs),
    /// Lists environments, shows their prompts, and scores completions.
    #[command(subcommand)]
    Envs(EnvsCommand),
    /// Runs a config's pipeline in virtual time against a scripted service, and compares it with its bound.
    Simulate(SimulateArgs),
    /// Makes one page of a run folder, or a picture of its curves.
    Report(ReportArgs),
    /// Sends a run folder to experiment trackers.
    Track(TrackArgs),
    /// Serves the embedded engine as a Tinker API, for any client of it.
    Serve(ServeArgs),
    /// Computes rewards and runs self-driven environments for runs on any machine, over a NATS broker.
    Worker(WorkerArgs),
    /// Checks the broker between runs and workers.
    #[command(subcommand)]
    Nats(NatsCommand),
    /// Lists, shows, requeues and deletes jobs that no worker finished.
    #[command(subcommand)]
    DeadLetters(DeadLettersCommand),
    /// Model files: list what is in the cache, fetch ahead of a run.
    #[command(subcommand)]
    Models(ModelsCommand),
    /// Says what is missing on this machine, and how to get it.
    Doctor(DoctorArgs),
    /// Prints the completions of a shell.
    Completions {
        /// Shell to print completions for.
        shell: Shell,
    },
    /// Prints the manual page, or writes one for each command.
    Man {
        /// Writes into this folder.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// Arguments of the `run` command.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Path of the TOML config.
    pub config: PathBuf,
    /// Overrides a key, for example `--set model.base_model=./my-model`. The value is TOML; what is not, is text.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The run folder. Without it: `output_dir` of the config, else `outputs/<config>/<time>`.
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Ends the run after this many optimizer steps in all.
    #[arg(long, value_name = "N")]
    pub max_steps: Option<u64>,
    /// Seed of items, samples and the adapter.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Runs one of the config's stages, from the base model unless `model.from` says otherwise.
    #[arg(long, value_name = "NAME")]
    pub stage: Option<String>,
    /// The run folder of the stage before.
    #[arg(skip)]
    pub from: Option<PathBuf>,
    /// How the run resumes and when it stops.
    #[command(flatten)]
    pub resume_args: ResumeArgs,
}

impl RunArgs {
    /// The same config for another command.
    #[must_use]
    pub fn for_config(config: PathBuf, set: Vec<String>, seed: Option<u64>) -> Self {
        Self {
            config,
            set,
            output_dir: None,
            max_steps: None,
            seed,
            stage: None,
            from: None,
            resume_args: ResumeArgs::default(),
        }
    }

    /// The same with a stage of the config.
    #[must_use]
    pub fn at_stage(self, stage: Option<String>) -> Self {
        Self { stage, ..self }
    }
}

/// How a run resumes and when it stops.
#[derive(Args, Clone, Debug, Default)]
pub struct ResumeArgs {
    /// Whether to resume an earlier run.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub resume: ResumeMode,
    /// Resumes a run of another config; the differences are reported.
    #[arg(long)]
    pub force: bool,
    /// Stops after this time as Ctrl-C does, for example `90m` or `6h`; else `[run] deadline`.
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<String>,
}

/// Whether to resume an earlier run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ResumeMode {
    /// Resumes the run of the run folder, if it has one.
    #[default]
    Auto,
    /// Resumes the newest unfinished run of this config under `outputs/`.
    Latest,
    /// Never resumes: a run folder that has been used is rejected.
    Never,
}

impl ResumeMode {
    /// The mode of a stage whose folder lies in that of all stages: the newest of them has been found.
    #[must_use]
    pub fn within(self) -> Self {
        if self == Self::Latest { Self::Auto } else { self }
    }
}

/// Arguments of the `check` command.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Path of the TOML config.
    #[arg(required_unless_present = "schema")]
    pub config: Option<PathBuf>,
    /// Overrides a key, as in `run`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// One of the config's stages.
    #[arg(long, value_name = "NAME")]
    pub stage: Option<String>,
    /// The run folder, as in `run`.
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Sends no requests and fetches nothing.
    #[arg(long)]
    pub offline: bool,
    /// One JSON object with every number.
    #[arg(long)]
    pub json: bool,
    /// Prints the JSON Schema of configs, for editors.
    #[arg(long, conflicts_with_all = ["config", "set", "stage", "output_dir", "offline", "json"])]
    pub schema: bool,
}

/// Arguments of the `doctor` command.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// The TOML config whose requirements are checked; else those of the shipped configs.
    pub config: Option<PathBuf>,
    /// Overrides a key, as in `run`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// One of the config's stages.
    #[arg(long, value_name = "NAME")]
    pub stage: Option<String>,
}

/// Arguments of the `eval` command.
#[derive(Args, Debug)]
pub struct EvalArgs {
    /// The TOML config. Without an environment of weight 0, all are measured.
    pub config: PathBuf,
    /// Weights: a run folder (its last checkpoint), or the `tinker://` path of sampler weights; else the base model.
    #[arg(long, value_name = "RUN|PATH")]
    pub checkpoint: Option<String>,
    /// Measures two weights on the same items and compares them item by item; `base` is the base model.
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with = "checkpoint")]
    pub compare: Vec<String>,
    /// Overrides a key, as in `run`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// One of the config's stages.
    #[arg(long, value_name = "NAME")]
    pub stage: Option<String>,
    /// Seed of items and samples.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// One JSON object with every number.
    #[arg(long)]
    pub json: bool,
}

/// Commands below the `envs` command.
#[derive(Debug, Subcommand)]
pub enum EnvsCommand {
    /// Lists all built-in environments.
    List,
    /// Describes one: its arguments, its reward, and what it shows the model.
    Show {
        /// The environment and its arguments.
        #[command(flatten)]
        env: EnvArgs,
    },
    /// Prints the first items that a run of this seed samples.
    Sample {
        /// The environment and its arguments.
        #[command(flatten)]
        env: EnvArgs,
        /// Number of items to print.
        #[arg(short, long, value_name = "N", default_value_t = 3)]
        n: u64,
        /// One JSON object a line: `index`, `prompt`, `answer` where there is one, and `info`.
        #[arg(long)]
        json: bool,
    },
    /// Scores a handwritten completion with the base model on the embedded engine, and shows every part of the score.
    Score {
        /// The environment and its arguments.
        #[command(flatten)]
        env: EnvArgs,
        /// The item, as `sample` numbers it.
        #[arg(long, value_name = "I")]
        index: u64,
        /// The completion: the text itself, `@FILE` for the text of a file, `-` for standard input.
        #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
        completion: String,
        /// The model that answers logprob queries; not fetched for a reward that makes none.
        #[arg(long, value_name = "MODEL", default_value = "HuggingFaceTB/SmolLM2-135M-Instruct")]
        model: String,
        /// Renderer of conversations; else the one that belongs to the model.
        #[arg(long, value_name = "NAME")]
        renderer: Option<String>,
        /// One JSON object: `reward` or null, `reward_error` with its cause or null, `parse`, `queries`, `metrics`.
        #[arg(long)]
        json: bool,
    },
}

/// An environment as the `envs` commands name it.
#[derive(Args, Debug)]
pub struct EnvArgs {
    /// Its name; of a Python package, its folder, file or module.
    pub name: String,
    /// The interpreter of a Python package, where it is not that of a `.venv` or `python3`.
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,
    /// Sets an argument, for example `--set shots=2`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Seed of the order of its data, where the order is free.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

/// Arguments of the `simulate` command.
#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// The TOML config; its `[simulate]` says what the service and the rewards do.
    pub config: PathBuf,
    /// Overrides a key, as in `run`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// One of the config's stages.
    #[arg(long, value_name = "NAME")]
    pub stage: Option<String>,
    /// Optimizer steps; else `[simulate] steps`, else 200.
    #[arg(long, value_name = "N")]
    pub steps: Option<NonZeroU64>,
    /// Seed of items, times and faults.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Writes everything that happens, one JSON object a line. The same seed gives the same file.
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// One JSON object with every number.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of the `report` command.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The run folder; its run may still be active.
    #[arg(value_name = "RUN_DIR")]
    pub folder: PathBuf,
    /// Where to write: a file, which is replaced, or `-` for standard output. Without it: `report.html` or `report.png`
    /// in the run folder.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Format of the report.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub format: ReportFormat,
    /// Seed of the random choice of the rollouts that are shown.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Arguments of the `track` command.
#[derive(Args, Debug)]
pub struct TrackArgs {
    /// The run folder. A run that is sent to the tracker already is refused.
    #[arg(value_name = "RUN_FOLDER")]
    pub folder: PathBuf,
    /// Tracker to send it to; may be repeated.
    #[arg(long, value_name = "TRACKER", required = true, value_parser = tracker_parser())]
    pub to: Vec<Tracker>,
    /// Project of the run; else that of its config.
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// Name of the run; else that of its config, else the names of the folder and of the one that it is in.
    #[arg(long, value_name = "NAME")]
    pub run_name: Option<String>,
    /// Interpreter that has the tracker's package; else that of its config, else that of a `.venv` or `python3`.
    #[arg(long, value_name = "FILE")]
    pub python: Option<PathBuf>,
}

/// File format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// One self-contained HTML page.
    #[default]
    Html,
    /// The most informative curves, for a README or a paper.
    Png,
}

/// Arguments of the `serve` command.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Serves no model, but a service with the scripted times and faults of this file: see docs/benchmark.md.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "data", "threads", "kv_cache_mib", "kv", "seed"])]
    pub simulated: Option<PathBuf>,
    /// Writes what happens in the simulated service to this file, one JSON object a line.
    #[arg(long, value_name = "FILE", requires = "simulated")]
    pub events: Option<PathBuf>,
    /// Prints the summary of the simulated service as JSON.
    #[arg(long, requires = "simulated")]
    pub json: bool,
    /// Address to listen at; port 0 takes a free one. Anything but this machine itself needs a key.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8017")]
    pub addr: SocketAddr,
    /// The model: a folder, a `.gguf` file, a name, or `tiny-random`.
    #[arg(long, value_name = "NAME|FOLDER", default_value = "HuggingFaceTB/SmolLM2-135M-Instruct")]
    pub model: String,
    /// Environment variable with the key that clients must send.
    #[arg(long, value_name = "VARIABLE")]
    pub api_key_env: Option<String>,
    /// Accepts every client that can reach the address, without a key.
    #[arg(long, conflicts_with = "api_key_env")]
    pub allow_anyone: bool,
    /// Where checkpoints are kept.
    #[arg(long, value_name = "DIR", default_value = "outputs/serve")]
    pub data: PathBuf,
    /// Cores to use; all if not given.
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Most MiB of keys and values.
    #[arg(long, value_name = "MIB", default_value = "768")]
    pub kv_cache_mib: NonZeroUsize,
    /// What becomes of keys and values when in-flight weights are replaced.
    #[arg(long, default_value = "keep", value_parser = kv_parser())]
    pub kv: SwapKv,
    /// Most MiB of adapters in training, with gradients and moments.
    #[arg(long, value_name = "MIB", default_value = "4096")]
    pub adapter_mib: NonZeroUsize,
    /// Most MiB of sampler weights.
    #[arg(long, value_name = "MIB", default_value = "2048")]
    pub sampler_mib: NonZeroUsize,
    /// Minutes without a heartbeat after which a session ends.
    #[arg(long, value_name = "MINUTES", default_value = "30")]
    pub session_minutes: NonZeroUsize,
    /// Seed of samples without one, and of the weights of `tiny-random`.
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
}

/// Stream and credentials of a broker.
#[derive(Args, Debug)]
pub struct BrokerArgs {
    /// Name of the stream, and prefix of all names on the broker.
    #[arg(long, value_name = "NAME")]
    pub stream: Option<String>,
    /// File with a user's credentials. Default: the variable NATS_CREDS, or NATS_USER and NATS_PASSWORD.
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// File with CA certificates to trust; requires an encrypted connection. Default: the variable NATS_CA.
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// File with the client certificate. Default: the variable NATS_CERT.
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// File with the key of the client certificate. Default: the variable NATS_KEY.
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

/// Arguments of the `worker` command.
#[derive(Args, Debug)]
pub struct WorkerArgs {
    /// Address of the broker, or several, separated by commas. Default: the variable NATS_URL.
    #[arg(long, value_name = "URL")]
    pub nats: Option<String>,
    /// Stream and credentials of the broker.
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// Serves only this run, and subscribes to no messages of other runs.
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
    /// Serves the environment with this name in the run; may be repeated. `NAME=PATH` gives the path of its package on
    /// this machine. Default: all environments.
    #[arg(long, value_name = "NAME[=PATH]")]
    pub env: Vec<String>,
    /// Most jobs at a time. Default: the number of cores.
    #[arg(long, value_name = "N")]
    pub concurrency: Option<NonZeroUsize>,
    /// Name of the worker, unique among all workers. Default: made from the host and the process.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Seconds that jobs in progress may run after SIGTERM. Unfinished jobs then return to the queue.
    #[arg(long, value_name = "SECONDS", default_value_t = 25)]
    pub grace: u64,
}

/// Commands below the `nats` command.
#[derive(Debug, Subcommand)]
pub enum NatsCommand {
    /// Checks whether a broker is ready for jobs, and creates the stream if needed.
    Check {
        /// Address of the broker. Default: the variable NATS_URL.
        url: Option<String>,
        /// Stream and credentials of the broker.
        #[command(flatten)]
        broker: BrokerArgs,
        /// Copies of each message in a cluster, if the stream is created.
        #[arg(long, value_name = "N")]
        replicas: Option<NonZeroUsize>,
        /// Most bytes that the stream stores, if it is created.
        #[arg(long, value_name = "BYTES")]
        max_bytes: Option<NonZeroU64>,
        /// Checks with the permissions of the run with this name, whose user may not take jobs.
        #[arg(long, value_name = "NAME")]
        run: Option<String>,
        /// Creates nothing. Prints the command that creates the stream instead.
        #[arg(long)]
        dry_run: bool,
        /// Prints the authorization of a user for the run with this name, and of one for its workers, and exits.
        #[arg(long, value_name = "RUN")]
        permissions: Option<String>,
        /// With `--permissions`: name of an environment of the run; may be repeated.
        #[arg(long, value_name = "NAME", requires = "permissions")]
        env: Vec<String>,
    },
}

/// Commands below the `dead-letters` command.
#[derive(Debug, Subcommand)]
pub enum DeadLettersCommand {
    /// Lists dead letters with their causes.
    List {
        /// Broker and run of the dead letters.
        #[command(flatten)]
        letters: DeadLettersArgs,
        /// Prints one JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Shows one dead letter: its cause and its job.
    Show {
        /// Broker and run of the dead letters.
        #[command(flatten)]
        letters: DeadLettersArgs,
        /// Id of the job, or its first characters.
        job: String,
        /// Prints a JSON object with the whole job.
        #[arg(long)]
        json: bool,
    },
    /// Queues jobs again. Their run uses the results if it still waits for them, or when it resumes.
    Replay {
        /// Broker and run of the dead letters.
        #[command(flatten)]
        letters: DeadLettersArgs,
        /// Ids of jobs, or their first characters. Default: all.
        jobs: Vec<String>,
    },
    /// Deletes dead letters from the stream.
    #[command(group = clap::ArgGroup::new("deleted").required(true).args(["jobs", "all"]))]
    Purge {
        /// Broker and run of the dead letters.
        #[command(flatten)]
        letters: DeadLettersArgs,
        /// Ids of the jobs of these letters, or their first characters.
        jobs: Vec<String>,
        /// Deletes all dead letters, or all of the run.
        #[arg(long)]
        all: bool,
    },
}

/// The broker and the run whose dead letters are selected.
#[derive(Args, Debug)]
pub struct DeadLettersArgs {
    /// Address of the broker. Default: the variable NATS_URL.
    #[arg(long, value_name = "URL")]
    pub nats: Option<String>,
    /// Stream and credentials of the broker.
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// Selects only dead letters of this run, and uses the permissions of its user.
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
}

/// Commands below the `models` command.
#[derive(Debug, Subcommand)]
pub enum ModelsCommand {
    /// Lists the models in the cache, and those that can be fetched by name.
    List,
    /// Fetches a model into the cache.
    Fetch {
        /// A name such as `HuggingFaceTB/SmolLM2-135M-Instruct`.
        name: String,
    },
    /// Shows how a model reads conversations: template, renderer, stop tokens, tools, context and a rendered sample.
    Show(ShowModelArgs),
}

/// Arguments of `models show`.
#[derive(Args, Debug)]
pub struct ShowModelArgs {
    /// A name, a folder or a GGUF file. Only the tokenizer is fetched, not the weights.
    pub name: String,
    /// Renderer to show. Default: the one that a run would use.
    #[arg(long, value_name = "NAME")]
    pub renderer: Option<String>,
    /// Sets a variable of the chat template, for example `--arg enable_thinking=false`. The value is TOML; what is not, is
    /// text.
    #[arg(long = "arg", value_name = "KEY=VALUE")]
    pub arguments: Vec<String>,
    /// Prints the chat template itself.
    #[arg(long, conflicts_with = "json")]
    pub template: bool,
    /// Prints everything as one JSON object, the chat template included.
    #[arg(long)]
    pub json: bool,
}

/// Reads the variants of [`Tracker`] by the names that configs use.
fn tracker_parser() -> impl clap::builder::TypedValueParser<Value = Tracker> {
    PossibleValuesParser::new(variant_names::<Tracker>())
        .try_map(|name| variant(&name).ok_or("is no tracker"))
}

/// Reads the variants of [`SwapKv`] by the names that configs use.
fn kv_parser() -> impl clap::builder::TypedValueParser<Value = SwapKv> {
    PossibleValuesParser::new(variant_names::<SwapKv>()).map(|name| variant(&name).unwrap_or_default())
}
