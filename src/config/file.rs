//! The config file as written: the keys of the original harness with their aliases, and additional keys.
//!
//! Unknown keys are rejected; defaults of missing keys are resolved in [`super::plan`]. The comments on the keys
//! become the descriptions that editors show ([`super::schema`]).

use super::choice::{Choice, WeightsChoice};
use super::nats::Transport;
use super::rewards::{OracleWeights, ShadowFrom};
use super::simulate::SimulatePlan;
use super::trainer::{MemberFailureHandling, ReferenceWeights, loss_choice};
use crate::tracker::Tracker;
use minds_core::advantage::Estimator;
use minds_core::loss::PolicyLoss;
use minds_core::optim::LearningRateDecay;
use minds_core::record::WrittenRollouts;
use minds_core::service::SamplerWeights;
use minds_engine::runtime::SwapKv;
use minds_environments::demonstrations::TrainedTurns;
use minds_environments::worker::BadReward;
use minds_stages::batcher::{ConstantGroups, LossWeighting, StalenessHandling, TruncatedRollouts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

/// All tables of a config file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    /// The run folder; by default a new one under `outputs/`.
    pub output_dir: Option<PathBuf>,
    /// The environment of a run without a mixture.
    pub env: Option<EnvConfig>,
    /// A mixture of environments; if there are any, `env` is not read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub envs: Vec<EnvConfig>,
    /// Conversations to imitate. With this table, nothing is sampled to train on, and environments are only evaluated.
    pub sft: Option<SupervisedConfig>,
    /// A model whose probabilities the policy is trained toward, token by token.
    pub teacher: Option<TeacherConfig>,
    /// Batches, optimizer steps, loss and sampling.
    #[serde(default)]
    pub trainer: TrainerConfig,
    /// The base model that is trained.
    pub model: Option<BaseModelConfig>,
    /// The service that samples and trains.
    #[serde(default)]
    pub tinker: TinkerConfig,
    /// The optimizer beyond its learning rate.
    #[serde(default)]
    pub optim: OptimConfig,
    /// How rewards are computed, and their limits.
    #[serde(default)]
    pub scorer: ScorerConfig,
    /// The broker between the run and its workers. May hold a password, so no run folder keeps it.
    #[serde(default, skip_serializing)]
    pub nats: NatsConfig,
    /// Shadow adapters, which measure gradient steps for rewards.
    #[serde(default)]
    pub shadow: ShadowConfig,
    /// Size of the evaluations during a run.
    #[serde(default)]
    pub eval: EvalConfig,
    /// The run as a whole.
    #[serde(default)]
    pub run: RunConfig,
    /// Prices of the service's tokens, and a cap. A resumed run may change them, so no run folder keeps them.
    #[serde(default, skip_serializing)]
    pub budget: BudgetConfig,

    /// What the run writes into its folder besides what it needs to resume.
    #[serde(default)]
    pub log: LogConfig,
    /// Sizes of the embedded engine.
    #[serde(default)]
    pub engine: EngineConfig,
    /// Address of metrics and dashboard. No run depends on it, so no run folder keeps it.
    #[serde(default, skip_serializing)]
    pub metrics: MetricsConfig,
    /// The scripted service of `simulate`. No run depends on it, so no run folder keeps it.
    #[serde(default, skip_serializing)]
    pub simulate: SimulatePlan,
}

/// Keys of the `[sft]` table.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SupervisedConfig {
    /// File with one conversation a row: JSON Lines, also compressed with zstd, or Parquet.
    pub data: String,
    /// Which turns are imitated.
    pub train_on: Option<Choice<TrainedTurns>>,
    /// Times that each row is trained, in the place of `trainer.total_batches`.
    pub epochs: Option<NonZeroU64>,
    /// Share of the rows that is held out and measured.
    pub held_out: Option<f64>,
}

/// Keys of the `[teacher]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TeacherConfig {
    /// Name of a model of the service, a folder or a GGUF file for the embedded engine, a path of saved sampler weights, or
    /// `base`.
    pub model: Option<String>,
    /// Instructions that the teacher reads and the policy does not.
    pub system: Option<String>,
    /// File with conversations that the teacher reads before each prompt, one a row.
    pub examples: Option<PathBuf>,
    /// Weight of the reverse KL per token.
    pub coef: Option<f64>,
    /// Whether rewards are trained, too.
    pub rewards: Option<bool>,
}

/// Keys of the `[run]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Time after which the run stops and saves.
    pub deadline: Option<String>,
    /// How long groups may wait for a response from a service, for example one that a reward queries.
    pub give_up_after: Option<String>,
}

/// Keys of the `[budget]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetConfig {
    /// Most USD that the whole run may cost, the part before it was resumed included.
    pub max_usd: Option<f64>,
    /// File with the prices of models, in the form of Tinker's published list.
    pub prices: Option<PathBuf>,
}

/// Keys of the `[log]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Whether the run writes TensorBoard event files into its folder.
    pub tensorboard: Option<bool>,
    /// Which of the trained rollouts the run writes into its folder.
    pub rollouts: Option<Choice<WrittenRollouts>>,
    /// Experiment trackers that show the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<Choice<Tracker>>,
    /// Project of the run in these trackers.
    pub project: Option<String>,
    /// Name of the run in these trackers.
    pub run_name: Option<String>,
    /// Interpreter that has the packages of these trackers.
    pub python: Option<PathBuf>,
    /// Steps between two tables of rollouts in these trackers; 0 sends none.
    pub table_every: Option<u64>,
    /// Longest that the end of the run waits for these trackers.
    pub tracker_timeout: Option<String>,
}

/// Keys of the `[env]` and `[[envs]]` tables.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EnvConfig {
    /// Name of a built-in environment, or folder, file or module of a Python package.
    pub id: String,
    /// Name of the environment in metrics.
    pub name: Option<String>,
    /// Share of the run, in a mixture.
    #[serde(alias = "ratio")]
    pub weight: Option<f64>,
    /// Steps between two evaluations of it, if its weight is 0, in the place of `trainer.eval_every`.
    pub eval_every: Option<NonZeroU64>,
    /// Interpreter of a Python environment.
    pub python: Option<PathBuf>,
    /// Worker processes of a Python environment.
    pub workers: Option<NonZeroUsize>,
    /// Rollouts that one worker process runs at a time.
    pub rollouts_per_worker: Option<NonZeroUsize>,
    /// Seconds that loading the environment may take.
    pub load_timeout_s: Option<NonZeroU64>,
    /// Seconds that a rollout may take, including its reward but not the time spent waiting for the service.
    pub rollout_timeout_s: Option<NonZeroU64>,
    /// Environment variables that the worker processes get in addition to the usual ones.
    pub pass_env: Option<Vec<String>>,
    /// How a reward that is not a finite number is handled.
    pub on_bad_reward: Option<Choice<BadReward>>,
    /// Arguments that are passed to the environment.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub args: toml::Table,
}

/// Keys of the `[trainer]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerConfig {
    /// Rollouts of each group of an item.
    pub rollouts_per_example: Option<NonZeroU32>,
    /// Groups per optimizer step.
    #[serde(alias = "batch_size")]
    pub groups_per_batch: Option<NonZeroUsize>,
    /// Optimizer steps of the whole run.
    #[serde(alias = "num_batches")]
    pub total_batches: Option<NonZeroU64>,
    /// Seed of items, samples and the adapter.
    pub seed: Option<u64>,
    /// Steps by which the sampling weights may lie behind those in training.
    #[serde(alias = "max_steps_off_policy")]
    pub async_off_policy_steps: Option<u64>,
    /// Largest staleness: steps by which the weights that sampled a group may lie behind those that it trains.
    pub max_staleness: Option<u64>,
    /// How the staleness of groups is kept within its limit.
    pub staleness: Option<Choice<StalenessHandling>>,
    /// Optimizer steps per batch.
    pub num_substeps: Option<NonZeroUsize>,
    /// Minibatches in which the data of an optimizer step is sent.
    pub stream_minibatches: Option<NonZeroUsize>,
    /// Whether new weights reach rollouts that are being sampled.
    pub weights: Option<Choice<SamplerWeights>>,
    /// Steps between two publications of the weights.
    pub publish_every: Option<NonZeroU64>,
    /// Step size of the optimizer.
    pub learning_rate: Option<f64>,
    /// Name of the loss function.
    #[serde(default, deserialize_with = "loss_choice")]
    pub loss_fn: Option<Choice<PolicyLoss>>,
    /// Settings of the loss.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub loss_fn_config: BTreeMap<String, f64>,
    /// Rank of the adapter.
    #[serde(alias = "lora_rank")]
    pub training_rank: Option<usize>,
    /// Numerator of the adapter's scale.
    pub lora_alpha: Option<f64>,
    /// How rewards become advantages.
    pub advantage: Option<Choice<Estimator>>,
    /// How a group with failed members is handled.
    pub on_member_failure: Option<Choice<MemberFailureHandling>>,
    /// Fewest members with a reward that a group needs to be trained.
    pub min_members: Option<NonZeroUsize>,
    /// Which units have equal weight in the loss.
    pub loss_weighting: Option<Choice<LossWeighting>>,
    /// Gap between sampled and trained logprobs above which an alarm is raised.
    pub kl_alarm: Option<f64>,
    /// Mean gap in nats between sampled and trained logprobs of the first step at which the run ends.
    pub max_first_gap: Option<f64>,
    /// Penalty per nat of drift from the reference.
    pub kl_penalty_coef: Option<f64>,
    /// What becomes of rollouts whose last completion was cut off.
    pub truncated: Option<Choice<TruncatedRollouts>>,
    /// Tokens before `max_new_tokens` from which on a completion costs reward.
    pub overlong_buffer: Option<NonZeroUsize>,
    /// Most reward that length costs among the better rollouts of a group.
    pub length_penalty: Option<f64>,
    /// The reference weights of the drift penalty.
    pub kl_reference: Option<WeightsChoice<ReferenceWeights>>,
    /// How groups whose rewards are all equal are handled.
    pub constant_groups: Option<Choice<ConstantGroups>>,
    /// Optimizer steps between two checkpoints.
    pub save_every: Option<u64>,
    /// Number of newest checkpoints to keep.
    pub keep_states: Option<usize>,
    /// Time after which a server deletes a checkpoint by itself.
    pub state_ttl: Option<String>,
    /// Steps between evaluations; after all steps, the final weights are evaluated too.
    pub eval_every: Option<u64>,
    /// Sampling parameters of the completions.
    #[serde(default)]
    pub args: SamplingConfig,
}

/// Keys of the `[trainer.args]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingConfig {
    /// Most tokens per completion.
    pub max_new_tokens: Option<NonZeroUsize>,
    /// Softmax temperature of sampling.
    pub temperature: Option<f32>,
    /// Number of most likely tokens to sample from.
    pub top_k: Option<NonZeroUsize>,
    /// Probability mass of the most likely tokens to sample from.
    pub top_p: Option<f32>,
}

/// Keys of the `[model]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BaseModelConfig {
    /// Name, folder, GGUF file or `tiny-random`.
    pub base_model: String,
    /// Renderer of conversations into tokens of the model.
    #[serde(alias = "renderer")]
    pub renderer_name: Option<String>,
    /// Variables for the model's chat template, such as `enable_thinking`.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub template_args: toml::Table,
    /// Weights to start from in the place of the base model: a run folder, the path of saved weights, or a PEFT folder.
    pub from: Option<String>,
    /// Whether the optimizer continues from where it was saved with these weights.
    pub from_optimizer: Option<bool>,
}

/// Keys of the `[tinker]` table.
#[derive(Clone, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TinkerConfig {
    /// `embedded` or a server's address.
    pub base_url: Option<String>,
    /// The key itself. Never written anywhere.
    #[serde(skip_serializing)]
    pub api_key: Option<String>,
    /// The environment variable that holds the key.
    pub api_key_env: Option<String>,
    /// Allows plain http to other machines.
    pub allow_insecure: Option<bool>,
    /// How long to wait for a server that does not respond.
    pub outage: Option<String>,
    /// Whether the model need not be in the server's list.
    pub any_model: Option<bool>,
    /// Most sample requests and logprob queries in flight. Default: as many as the server allows.
    pub max_sample_requests: Option<NonZeroUsize>,
}

impl std::fmt::Debug for TinkerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TinkerConfig")
            .field("base_url", &self.base_url)
            .field("api_key", &self.api_key.as_ref().map(|_| "…"))
            .field("api_key_env", &self.api_key_env)
            .field("allow_insecure", &self.allow_insecure)
            .field("outage", &self.outage)
            .field("any_model", &self.any_model)
            .field("max_sample_requests", &self.max_sample_requests)
            .finish()
    }
}

/// Keys of the `[optim]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OptimConfig {
    /// Decay of the first moment.
    pub beta1: Option<f64>,
    /// Decay of the second moment.
    pub beta2: Option<f64>,
    /// Added to the root of the second moment.
    pub eps: Option<f64>,
    /// Coefficient of the decoupled weight decay.
    pub weight_decay: Option<f64>,
    /// Largest global gradient norm.
    pub grad_clip_norm: Option<f64>,
    /// Largest global gradient norm, as a multiple of the largest of the last 16 optimizer steps.
    pub grad_clip_multiple: Option<f64>,
    /// Schedule by which the step size decays.
    pub lr_schedule: Option<Choice<LearningRateDecay>>,
    /// Steps over which the step size grows from 0.
    pub warmup_steps: Option<u64>,
    /// Final step size as a share of the full one.
    pub lr_floor: Option<f64>,
}

/// Keys of the `[scorer]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ScorerConfig {
    /// Where rewards are computed and self-driven environments run.
    pub transport: Option<Choice<Transport>>,
    /// Rewards computed at a time; with `nats`, including those that wait for a worker.
    pub workers: Option<NonZeroUsize>,
    /// The weights that answer logprob queries of rewards.
    pub policy: Option<WeightsChoice<OracleWeights>>,
    /// Seconds that one reward may take.
    pub timeout_s: Option<NonZeroU64>,
    /// Logprob queries in flight at a time.
    pub concurrency: Option<NonZeroUsize>,
    /// Most logprob queries sent between two steps.
    pub queries_per_step: Option<u64>,
}

/// Keys of the `[nats]` table.
#[derive(Clone, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NatsConfig {
    /// Address of the broker, or several, separated by commas.
    pub url: Option<String>,
    /// File with a user's credentials: a JWT and its key.
    pub credentials: Option<PathBuf>,
    /// File with CA certificates to trust. Requires an encrypted connection.
    pub tls_ca: Option<PathBuf>,
    /// File with the client certificate.
    pub tls_cert: Option<PathBuf>,
    /// File with the key of the client certificate.
    pub tls_key: Option<PathBuf>,
    /// Name of the stream, and prefix of all names on the broker.
    pub stream: Option<String>,
    /// Copies of each message in a cluster.
    pub replicas: Option<NonZeroUsize>,
    /// Most bytes that the stream stores.
    pub max_bytes: Option<NonZeroU64>,
    /// Name of the run on the broker.
    pub run: Option<String>,
    /// Seconds without a progress report of its worker after which a job is redelivered.
    pub ack_wait_s: Option<NonZeroU64>,
    /// Number of deliveries after which an unfinished job becomes a dead letter.
    pub max_deliver: Option<NonZeroU64>,
    /// Most MiB of jobs that wait until the broker stores them.
    pub buffer_mib: Option<NonZeroUsize>,
}

impl std::fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address may contain a password.
        f.debug_struct("NatsConfig")
            .field("stream", &self.stream)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}

/// Keys of the `[shadow]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowConfig {
    /// Number of shadow adapters, and therefore of measurements at a time.
    pub adapters: Option<NonZeroUsize>,
    /// LoRA rank of the shadow adapters.
    pub rank: Option<usize>,
    /// Step size of the measured gradient step.
    pub learning_rate: Option<f64>,
    /// The weights that shadow adapters start from.
    pub from: Option<Choice<ShadowFrom>>,
}

/// Keys of the `[eval]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EvalConfig {
    /// Items of each environment of weight 0.
    pub episodes: Option<NonZeroU64>,
    /// Samples of each item.
    pub samples_per_item: Option<NonZeroU32>,
    /// Least reward that counts as a success.
    pub success_at: Option<f64>,
    /// Temperature of evaluations; 0 takes the most likely tokens.
    pub temperature: Option<f32>,
    /// Rollouts in flight at a time.
    pub concurrency: Option<NonZeroUsize>,
}

/// Keys of the `[engine]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// Compute threads; the number of cores if not given.
    pub threads: Option<NonZeroUsize>,
    /// Memory for keys and values of sequences being sampled, in MiB.
    pub kv_cache_mib: Option<NonZeroUsize>,
    /// Most sequences that are decoded together.
    pub max_rows: Option<NonZeroUsize>,
    /// What becomes of keys and values when in-flight weights are replaced.
    pub kv: Option<Choice<SwapKv>>,
}

/// Keys of the `[metrics]` table.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricsConfig {
    /// Address and port that serve Prometheus and the dashboard, or `off`.
    pub addr: Option<String>,
    /// The environment variable with the token that clients on other machines must send.
    pub token_env: Option<String>,
}
