//! The config as it is written: the keys of the original harness with their aliases, and ours beside them.
//!
//! Nothing is decided here. Unknown keys are refused; what a missing key means is said in [`super::plan`]. The comments
//! are what editors show ([`super::schema`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A whole file.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    /// The run folder.
    pub output_dir: Option<PathBuf>,
    /// The environment.
    pub env: Option<EnvConfig>,
    /// A mixture of environments; if there are any, `env` is not read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub envs: Vec<EnvConfig>,
    /// Batches and steps.
    #[serde(default)]
    pub trainer: TrainerConfig,
    /// What is trained.
    pub model: Option<BaseModelConfig>,
    /// Who computes.
    #[serde(default)]
    pub tinker: TinkerConfig,
    /// The optimizer beyond its learning rate.
    #[serde(default)]
    pub optim: OptimConfig,
    /// Rewards.
    #[serde(default)]
    pub scorer: ScorerConfig,
    /// Measured gradient steps.
    #[serde(default)]
    pub shadow: ShadowConfig,
    /// Evaluations.
    #[serde(default)]
    pub eval: EvalConfig,
    /// The run as a whole.
    #[serde(default)]
    pub run: RunConfig,
    /// What is written down.
    #[serde(default)]
    pub log: LogConfig,
    /// The embedded engine.
    #[serde(default)]
    pub engine: EngineConfig,
    /// Where the run can be looked at. No run depends on it, so no run folder keeps it.
    #[serde(default, skip_serializing)]
    pub metrics: MetricsConfig,
    /// What `simulate` plays against. No run depends on it, so no run folder keeps it.
    #[serde(default, skip_serializing)]
    pub simulate: SimulateConfig,
}

/// `[run]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Time after which it stops and saves.
    pub deadline: Option<String>,
    /// How long groups may go without an answer from a service, one that a reward asks for example.
    pub give_up_after: Option<String>,
}

/// `[log]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Whether TensorBoard finds the run's numbers in its folder.
    pub tensorboard: Option<bool>,
}

/// `[env]` and `[[envs]]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EnvConfig {
    /// Name or path.
    pub id: String,
    /// Name in metrics.
    pub name: Option<String>,
    /// Share of the run, in a mixture.
    #[serde(alias = "ratio")]
    pub weight: Option<f64>,
    /// Interpreter of a Python environment.
    pub python: Option<PathBuf>,
    /// Its processes.
    pub workers: Option<usize>,
    /// Rollouts that one of them plays at a time.
    pub rollouts_per_worker: Option<usize>,
    /// Seconds that loading it may take.
    pub load_timeout_s: Option<u64>,
    /// Seconds that a rollout may take, its reward included and waits for the service not.
    pub rollout_timeout_s: Option<u64>,
    /// Environment variables that it is given beside the usual ones.
    pub pass_env: Option<Vec<String>>,
    /// What becomes of a reward that is no number.
    pub on_bad_reward: Option<String>,
    /// Handed to the environment.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub args: toml::Table,
}

/// `[trainer]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerConfig {
    /// Rollouts per group.
    pub rollouts_per_example: Option<u32>,
    /// Groups per optimizer step.
    #[serde(alias = "batch_size")]
    pub groups_per_batch: Option<usize>,
    /// Optimizer steps.
    #[serde(alias = "num_batches")]
    pub total_batches: Option<u64>,
    /// Seed of items, samples and the adapter.
    pub seed: Option<u64>,
    /// Steps by which the weights that play may lie behind those in training.
    #[serde(alias = "max_steps_off_policy")]
    pub async_off_policy_steps: Option<u64>,
    /// Steps by which the weights that played a group may lie behind those that it trains.
    pub max_staleness: Option<u64>,
    /// How groups are kept from growing too old.
    pub staleness: Option<String>,
    /// Optimizer steps made of a batch.
    pub num_substeps: Option<usize>,
    /// Parts in which what an optimizer step is made of is sent.
    pub stream_minibatches: Option<usize>,
    /// Steps between two publications of the weights.
    pub publish_every: Option<u64>,
    /// Step size.
    pub learning_rate: Option<f64>,
    /// The loss.
    pub loss_fn: Option<String>,
    /// Settings of the loss.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub loss_fn_config: BTreeMap<String, f64>,
    /// Rank of the adapter.
    #[serde(alias = "lora_rank")]
    pub training_rank: Option<usize>,
    /// Numerator of the adapter's scale.
    pub lora_alpha: Option<f64>,
    /// How rewards become advantages.
    pub advantage: Option<String>,
    /// What becomes of a group some of whose members failed.
    pub on_member_failure: Option<String>,
    /// Fewest members with a reward for a group to be trained.
    pub min_members: Option<usize>,
    /// What counts as much as what in the loss.
    pub loss_weighting: Option<String>,
    /// Gap between sampled and trained log-probs above which there is an alarm.
    pub kl_alarm: Option<f64>,
    /// Mean gap in nats between the sampled and the trained logprobs of the first step from which the run ends.
    pub max_first_gap: Option<f64>,
    /// What a nat of drift from the reference costs.
    pub kl_penalty_coef: Option<f64>,
    /// The weights that the policy is not to leave.
    pub kl_reference: Option<String>,
    /// What becomes of groups whose rewards are all equal.
    pub constant_groups: Option<String>,
    /// Steps between checkpoints.
    pub save_every: Option<u64>,
    /// Newest states to keep.
    pub keep_states: Option<usize>,
    /// Time after which a server deletes a state by itself.
    pub state_ttl: Option<String>,
    /// Steps between evaluations; when all steps are done, their weights are evaluated too.
    pub eval_every: Option<u64>,
    /// Sampling.
    #[serde(default)]
    pub args: SamplingConfig,
}

/// `[trainer.args]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingConfig {
    /// Most tokens per answer.
    pub max_new_tokens: Option<usize>,
    /// Softmax temperature.
    pub temperature: Option<f32>,
    /// Most likely tokens to keep.
    pub top_k: Option<usize>,
    /// Probability mass to keep.
    pub top_p: Option<f32>,
}

/// `[model]`
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BaseModelConfig {
    /// Name, folder, GGUF file or `tiny-random`.
    pub base_model: String,
    /// How the model reads conversations.
    #[serde(alias = "renderer")]
    pub renderer_name: Option<String>,
}

/// `[tinker]`
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
    /// How long a server that does not answer is waited for.
    pub outage: Option<String>,
    /// Whether the model need not be in the server's list.
    pub any_model: Option<bool>,
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
            .finish()
    }
}

/// `[optim]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OptimConfig {
    /// Decay of the first moment.
    pub beta1: Option<f64>,
    /// Decay of the second moment.
    pub beta2: Option<f64>,
    /// Added to the root of the second moment.
    pub eps: Option<f64>,
    /// Decoupled weight decay.
    pub weight_decay: Option<f64>,
    /// Largest global gradient norm.
    pub grad_clip_norm: Option<f64>,
    /// Largest global gradient norm, as a multiple of the largest of the last 16 optimizer steps.
    pub grad_clip_multiple: Option<f64>,
    /// How the step size falls.
    pub lr_schedule: Option<String>,
    /// Steps over which it grows from nothing.
    pub warmup_steps: Option<u64>,
    /// What is left of it at the end, as a share.
    pub lr_floor: Option<f64>,
}

/// `[scorer]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ScorerConfig {
    /// Rewards computed at a time.
    pub workers: Option<usize>,
    /// Whose log-probs count.
    pub policy: Option<String>,
    /// Seconds that one reward may take.
    pub timeout_s: Option<u64>,
    /// Log-prob queries under way at a time.
    pub concurrency: Option<usize>,
    /// Most log-prob queries sent between two steps.
    pub queries_per_step: Option<u64>,
}

/// `[shadow]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowConfig {
    /// Adapters for measuring, and so measurements at a time.
    pub adapters: Option<usize>,
    /// Their rank.
    pub rank: Option<usize>,
    /// Size of the one step.
    pub learning_rate: Option<f64>,
    /// The weights that they start from.
    pub from: Option<String>,
}

/// `[eval]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EvalConfig {
    /// Episodes of each environment of weight 0.
    pub episodes: Option<u64>,
    /// Episodes under way at a time.
    pub concurrency: Option<usize>,
}

/// `[engine]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// Threads; the number of cores if not given.
    pub threads: Option<usize>,
    /// Memory for keys and values of sequences being sampled, in MiB.
    pub kv_cache_mib: Option<usize>,
    /// Sequences decoded together.
    pub max_rows: Option<usize>,
}

/// `[metrics]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsConfig {
    /// Where Prometheus and browsers are answered: an address with its port, or `off`.
    pub addr: Option<String>,
    /// The environment variable with the token that others than this machine have to know.
    pub token_env: Option<String>,
}

/// `[simulate]`
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SimulateConfig {
    /// Optimizer steps.
    pub steps: Option<u64>,
    /// One sample.
    pub sample: Option<LatencyConfig>,
    /// Samples and queries that the service works on at a time.
    pub sampling_slots: Option<usize>,
    /// What one reward does on its own.
    pub reward: Option<LatencyConfig>,
    /// Log-prob queries of one reward.
    pub queries: Option<usize>,
    /// One of them.
    pub query: Option<LatencyConfig>,
    /// A pass over a whole batch.
    pub forward_backward: Option<LatencyConfig>,
    /// An optimizer step.
    pub optim_step: Option<LatencyConfig>,
    /// Making a sampler of new weights.
    pub export: Option<LatencyConfig>,
    /// Saving a state.
    pub save: Option<LatencyConfig>,
    /// Share of the requests for samples and log-probs that fail.
    pub failures: Option<f64>,
    /// Share of the requests for samples that are never answered.
    pub hangs: Option<f64>,
    /// Share of the samples with a log-prob that is no number.
    pub not_finite: Option<f64>,
    /// Share of the rewards that fail for good.
    pub missing: Option<f64>,
    /// What goes wrong when.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultConfig>,
}

/// A time in seconds, always the same or spread.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(
    untagged,
    expecting = "write a number of seconds, or a table with `mean` and `spread`, `sigma`, `tail_share`, `tail_factor`"
)]
pub enum LatencyConfig {
    /// Always the same.
    Seconds(f64),
    /// Spread.
    Spread(LatencySpreadConfig),
}

/// A time that differs from case to case.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LatencySpreadConfig {
    /// Its mean without the tail.
    pub mean: f64,
    /// Its distribution.
    pub spread: Option<String>,
    /// Of the logarithm.
    pub sigma: Option<f64>,
    /// Share of the cases that take longer.
    pub tail_share: Option<f64>,
    /// So many times as long.
    pub tail_factor: Option<f64>,
}

/// `[[simulate.faults]]`
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FaultConfig {
    /// Seconds from the start.
    pub at_s: f64,
    /// Seconds that it lasts.
    pub for_s: f64,
    /// What happens.
    pub what: String,
    /// How much slower everything is.
    pub factor: Option<f64>,
}
