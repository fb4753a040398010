//! What a config means: every value decided and checked.

use super::choose;
use super::environments::{EnvPlan, LONGEST_S, environments};
use super::error::{ConfigError, nearest_key};
use super::file::{self, ConfigFile};
use super::metrics::MetricsPlan;
use super::overrides;
use super::pace::Pace;
pub use super::service::{EMBEDDED, EnginePlan, RemotePlan, ServicePlan};
use super::simulate::SimulatePlan;
use crate::cli;
use minds_core::advantage::Estimator;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SamplingParams, Stop};
use minds_stages::queries;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A run, decided.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The config's file, for messages.
    pub origin: String,
    /// The config's file name without its ending.
    pub stem: String,
    /// The run folder, if it was named.
    pub output_dir: Option<PathBuf>,
    /// Environments with their share.
    pub envs: Vec<EnvPlan>,
    /// Rollouts per group.
    pub group_size: NonZeroU32,
    /// How groups become optimizer steps.
    pub pace: Pace,
    /// Optimizer steps in all.
    pub max_steps: u64,
    /// Seed of items, samples and the adapter.
    pub seed: u64,
    /// The loss.
    pub loss: Loss,
    /// The optimizer.
    pub adam: AdamParams,
    /// The adapter.
    pub lora: LoraSpec,
    /// How rewards become advantages.
    pub estimator: Estimator,
    /// Time after which the run stops and saves.
    pub deadline: Option<Duration>,
    /// Whether TensorBoard finds the run's numbers in its folder.
    pub tensorboard: bool,
    /// Steps between checkpoints; 0 for none but the last.
    pub save_every: u64,
    /// Newest states to keep; `None` for all.
    pub keep_states: Option<NonZeroUsize>,
    /// How answers are drawn.
    pub sampling: SamplingParams,
    /// The base model.
    pub base_model: String,
    /// How it reads conversations, if it was named.
    pub renderer: Option<String>,
    /// Who computes.
    pub service: ServicePlan,
    /// Rewards computed at a time.
    pub scorers: NonZeroUsize,
    /// Whose log-probs count.
    pub judge: Judge,
    /// How often rewards may ask for log-probs.
    pub queries: queries::Limits,
    /// Adapters that measure gradient steps.
    pub shadows: NonZeroUsize,
    /// Their shape.
    pub shadow_lora: LoraSpec,
    /// Their step.
    pub shadow_adam: AdamParams,
    /// Where they start.
    pub shadow_from: ShadowFrom,
    /// Steps between evaluations; 0 for none.
    pub eval_every: u64,
    /// Episodes of each environment in an evaluation.
    pub eval_episodes: NonZeroU64,
    /// Of these, under way at a time.
    pub eval_concurrency: NonZeroUsize,
    /// Longest that one reward may take.
    pub score_timeout: Duration,
    /// Where the run can be looked at.
    pub metrics: MetricsPlan,
    /// What `simulate` plays against.
    pub simulate: SimulatePlan,
    /// The config with all overrides, as it is kept in the run folder.
    pub resolved: ConfigFile,
    /// What the user should know but need not change.
    pub warnings: Vec<String>,
}

/// Whose log-probs count in rewards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judge {
    /// The version that sampled the group.
    Sampled,
    /// The newest version when the reward is computed.
    Latest,
    /// The base model.
    Base,
    /// Saved sampler weights, by their path on the service.
    Pinned(String),
}

/// The weights that shadow adapters start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowFrom {
    /// The version of the policy that played.
    Policy,
    /// The base model.
    Base,
}

impl RunPlan {
    /// Reads the config of a `run` command and decides everything.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(command: &cli::Run, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let path = &command.config;
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
        let origin = path.display().to_string();
        // Read once as it stands, so that a complaint can show the line.
        toml::from_str::<ConfigFile>(&text).map_err(|e| parse_error(&origin, e.to_string()))?;
        let mut table: toml::Table =
            text.parse().map_err(|e: toml::de::Error| parse_error(&origin, e.to_string()))?;
        for set in &command.set {
            overrides::apply(&mut table, set)?;
            table
                .clone()
                .try_into::<ConfigFile>()
                .map_err(|e| parse_error(&format!("--set {set}"), e.message().to_owned()))?;
        }
        let mut file: ConfigFile =
            table.try_into().map_err(|e: toml::de::Error| parse_error(&origin, e.message().to_owned()))?;
        if let Some(steps) = command.max_steps {
            file.trainer.total_batches = Some(steps);
        }
        if let Some(seed) = command.seed {
            file.trainer.seed = Some(seed);
        }
        if let Some(deadline) = &command.going.deadline {
            file.run.deadline = Some(deadline.clone());
        }
        if let Some(dir) = &command.output_dir {
            file.output_dir = Some(dir.clone());
        }
        Self::decide(file, path, env)
    }

    /// The plan of the smallest config that names this environment and this model, on the embedded engine.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn embedded(
        env: file::Env,
        base_model: &str,
        renderer: Option<&str>,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let config = ConfigFile {
            env: Some(env),
            trainer: file::Trainer { seed: Some(seed), ..file::Trainer::default() },
            model: Some(file::Model {
                base_model: base_model.into(),
                renderer_name: renderer.map(str::to_owned),
            }),
            tinker: file::Tinker { base_url: Some(EMBEDDED.into()), ..file::Tinker::default() },
            ..ConfigFile::default()
        };
        Self::decide(config, Path::new("the command line"), &|_| None)
    }

    /// Saved sampler weights that the config names.
    #[must_use]
    pub fn pinned(&self) -> Vec<String> {
        let judge = match &self.judge {
            Judge::Pinned(path) => Some(path.clone()),
            _ => None,
        };
        judge.into_iter().chain(self.pace.kl_reference.clone()).collect()
    }

    fn decide(
        file: ConfigFile,
        path: &Path,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let origin = path.display().to_string();
        let bad = |key: &str, problem: String| ConfigError::Value {
            origin: origin.clone(),
            key: key.into(),
            problem,
        };
        let Some(model) = &file.model else {
            return Err(bad("model.base_model", "is missing: name the model to train".into()));
        };
        let trainer = &file.trainer;
        let seed = trainer.seed.unwrap_or(0);
        let envs = environments(&file, seed).map_err(|(key, problem)| bad(&key, problem))?;

        let at_least_one =
            |key: &str, value: usize| super::at_least_one(value).map_err(|problem| bad(key, problem));
        let group_size = trainer.rollouts_per_example.unwrap_or(4);
        let group_size = NonZeroU32::new(group_size)
            .ok_or_else(|| bad("trainer.rollouts_per_example", "is 0, it must be at least 1".into()))?;
        if group_size.get() > MOST_ROLLOUTS {
            let problem = format!("is {group_size}, it must be at most {MOST_ROLLOUTS}");
            return Err(bad("trainer.rollouts_per_example", problem));
        }
        let max_steps = trainer.total_batches.unwrap_or(100_000);
        if max_steps == 0 {
            return Err(bad("trainer.total_batches", "is 0, it must be at least 1".into()));
        }
        let pace = Pace::decide(&file, group_size.get()).map_err(|(key, problem)| bad(key, problem))?;
        let loss_name = trainer.loss_fn.as_deref().unwrap_or("importance_sampling");
        let loss = Loss::from_config(loss_name, &trainer.loss_fn_config)
            .map_err(|e| bad("trainer.loss_fn", format!("is wrong: {e}")))?;
        if loss == Loss::CrossEntropy {
            return Err(bad(
                "trainer.loss_fn",
                "is cross_entropy, which learns from no reward: use importance_sampling, ppo or cispo".into(),
            ));
        }
        let defaults = AdamParams::default();
        let adam = AdamParams {
            learning_rate: trainer.learning_rate.unwrap_or(defaults.learning_rate),
            beta1: file.optim.beta1.unwrap_or(defaults.beta1),
            beta2: file.optim.beta2.unwrap_or(defaults.beta2),
            eps: file.optim.eps.unwrap_or(defaults.eps),
            weight_decay: file.optim.weight_decay.unwrap_or(defaults.weight_decay),
            grad_clip_norm: file.optim.grad_clip_norm.unwrap_or(defaults.grad_clip_norm),
        };
        adam.check().map_err(|e| {
            let key = if e.key == "learning_rate" {
                "trainer.learning_rate".into()
            } else {
                format!("optim.{}", e.key)
            };
            bad(&key, format!("is {}, it must {}", e.value, e.must))
        })?;
        let lora = LoraSpec {
            alpha: trainer.lora_alpha.unwrap_or(32.0),
            ..LoraSpec::all_linear(trainer.training_rank.unwrap_or(32), seed)
        };
        lora.check()
            .map_err(|e| bad("trainer.training_rank", format!("or `trainer.lora_alpha` is wrong: {e}")))?;
        let estimator = choose(trainer.advantage.as_deref(), ESTIMATORS)
            .map_err(|problem| bad("trainer.advantage", problem))?;
        let judge = match file.scorer.policy.as_deref().map(|policy| (policy, policy.strip_prefix("pinned:")))
        {
            Some((_, Some(weights))) if !weights.is_empty() => Judge::Pinned(weights.to_owned()),
            written => choose(written.map(|(policy, _)| policy), JUDGES).map_err(|problem| {
                bad("scorer.policy", format!("{problem}, pinned:<path of sampler weights>"))
            })?,
        };

        let score_timeout = match file.scorer.timeout_s.unwrap_or(600) {
            seconds if !(1..=LONGEST_S).contains(&seconds) => {
                let problem = format!("is {seconds}, it must lie between 1 and {LONGEST_S}");
                return Err(bad("scorer.timeout_s", problem));
            }
            seconds => Duration::from_secs(seconds),
        };
        let concurrency = at_least_one("scorer.concurrency", file.scorer.concurrency.unwrap_or(128))?;
        if concurrency.get() > MOST_QUERIES {
            let problem = format!("is {concurrency}, it must be at most {MOST_QUERIES}");
            return Err(bad("scorer.concurrency", problem));
        }
        let queries = queries::Limits {
            concurrency,
            per_step: NonZeroU64::new(file.scorer.queries_per_step.unwrap_or(0)),
            // The reward's own limit comes later, so that the cause is told.
            patience: score_timeout / 2,
        };

        let args = &trainer.args;
        let sampling = SamplingParams {
            max_tokens: at_least_one("trainer.args.max_new_tokens", args.max_new_tokens.unwrap_or(2048))?
                .get(),
            temperature: args.temperature.unwrap_or(1.0),
            top_k: args.top_k,
            top_p: args.top_p.unwrap_or(1.0),
            seed: None,
            stop: Stop::ModelDefault,
        };
        if !(sampling.temperature.is_finite() && sampling.temperature >= 0.0) {
            let problem = format!("is {}, it must not be negative", sampling.temperature);
            return Err(bad("trainer.args.temperature", problem));
        }
        if sampling.top_k == Some(0) || !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
            return Err(bad(
                "trainer.args.top_p",
                "must lie in (0, 1], and `top_k` must be at least 1".into(),
            ));
        }

        let mut warnings = Vec::new();
        let shadow_from = choose(file.shadow.from.as_deref(), SHADOW_FROM)
            .map_err(|problem| bad("shadow.from", problem))?;
        // A copy of the policy has its shape.
        let shadow_lora = match (shadow_from, file.shadow.rank) {
            (ShadowFrom::Policy, Some(rank)) if rank != lora.rank => {
                let problem = format!(
                    "is {rank}: shadows that start from the policy have its rank, which is {} (`trainer.training_rank`); \
                     leave it out, or set `shadow.from` to \"base\"",
                    lora.rank
                );
                return Err(bad("shadow.rank", problem));
            }
            (ShadowFrom::Policy, _) => lora.clone(),
            (ShadowFrom::Base, rank) => {
                LoraSpec { alpha: 32.0, ..LoraSpec::all_linear(rank.unwrap_or(8), seed) }
            }
        };
        shadow_lora.check().map_err(|e| bad("shadow.rank", format!("is wrong: {e}")))?;
        let shadows = at_least_one("shadow.adapters", file.shadow.adapters.unwrap_or(1))?;
        if shadows.get() > MOST_SHADOWS {
            return Err(bad("shadow.adapters", format!("is {shadows}, it must be at most {MOST_SHADOWS}")));
        }
        let shadow_adam =
            AdamParams { learning_rate: file.shadow.learning_rate.unwrap_or(1e-3), ..AdamParams::default() };
        shadow_adam
            .check()
            .map_err(|e| bad("shadow.learning_rate", format!("is {}, it must {}", e.value, e.must)))?;
        let save_every = trainer.save_every.unwrap_or(20);
        let eval_every = trainer.eval_every.unwrap_or(0);
        if eval_every > 0 && envs.iter().all(|env| env.weight > 0.0) {
            warnings.push(
                "trainer.eval_every: nothing is evaluated, for no environment of [[envs]] has the weight 0"
                    .into(),
            );
        }
        let eval_episodes = NonZeroU64::new(file.eval.episodes.unwrap_or(64))
            .filter(|episodes| episodes.get() <= MOST_EPISODES)
            .ok_or_else(|| bad("eval.episodes", format!("must lie between 1 and {MOST_EPISODES}")))?;
        if sampling.temperature != 1.0 || sampling.top_k.is_some() || sampling.top_p < 1.0 {
            warnings.push(
                "trainer.args: samples are drawn from another distribution than the one whose log-probs are trained"
                    .into(),
            );
        }
        if loss == Loss::ImportanceSampling && pace.max_staleness > 2 {
            warnings.push(format!(
                "trainer.loss_fn: importance_sampling does not clip, and rollouts may be {} steps \
                 old: ppo or cispo is safer",
                pace.max_staleness
            ));
        }
        if group_size.get() == 1 && estimator != Estimator::None {
            warnings.push(
                "trainer.rollouts_per_example: a group of one has no baseline, so nothing is learnt".into(),
            );
        }
        if pace.rate.warmup >= max_steps {
            warnings.push(format!(
                "optim.warmup_steps: the run ends before the {} steps of its warm-up do",
                pace.rate.warmup
            ));
        }
        if args.max_new_tokens.is_none() {
            warnings.push("trainer.args.max_new_tokens is not set: answers may be 2048 tokens long".into());
        }
        Ok(Self {
            stem: path.file_stem().map_or_else(|| "run".into(), |s| s.to_string_lossy().into_owned()),
            output_dir: file.output_dir.clone(),
            envs,
            group_size,
            max_steps,
            seed,
            loss,
            adam,
            lora,
            estimator,
            deadline: file
                .run
                .deadline
                .as_deref()
                .map(time)
                .transpose()
                .map_err(|problem| bad("run.deadline", problem))?,
            tensorboard: file.log.tensorboard.unwrap_or(true),
            save_every,
            keep_states: keep_states(trainer.keep_states.unwrap_or(0), save_every, pace.max_staleness)
                .map_err(|problem| bad("trainer.keep_states", problem))?,
            sampling,
            base_model: model.base_model.clone(),
            renderer: model.renderer_name.clone(),
            service: ServicePlan::decide(&file, env, &bad)?,
            scorers: at_least_one("scorer.workers", file.scorer.workers.unwrap_or(16)).and_then(
                |workers| {
                    let problem = format!("is {workers}, it must be at most {MOST_SCORERS}");
                    if workers.get() > MOST_SCORERS {
                        Err(bad("scorer.workers", problem))
                    } else {
                        Ok(workers)
                    }
                },
            )?,
            judge,
            queries,
            shadows,
            shadow_lora,
            shadow_adam,
            shadow_from,
            eval_every,
            eval_episodes,
            eval_concurrency: at_least_one("eval.concurrency", file.eval.concurrency.unwrap_or(8))?,
            score_timeout,
            metrics: MetricsPlan::decide(&file.metrics, env).map_err(|(key, problem)| bad(key, problem))?,
            simulate: SimulatePlan::decide(&file.simulate).map_err(|(key, problem)| bad(&key, problem))?,
            warnings,
            origin,
            resolved: file,
            pace,
        })
    }
}

/// How many states are kept. The last one may turn out to be damaged, and shadows start from those of the oldest weights
/// that play.
fn keep_states(written: usize, save_every: u64, max_staleness: u64) -> Result<Option<NonZeroUsize>, String> {
    let Some(keep) = NonZeroUsize::new(written) else { return Ok(None) };
    let least = 2 + max_staleness.checked_div(save_every).unwrap_or(0);
    if (keep.get() as u64) < least {
        return Err(format!("is {keep}, it must be at least {least}, or 0 for all"));
    }
    Ok(Some(keep))
}

/// Most samples that one request can ask for.
const MOST_ROLLOUTS: u32 = 4096;
/// Most log-prob queries under way.
const MOST_QUERIES: usize = 4096;
/// Most rewards computed at a time.
const MOST_SCORERS: usize = 65_536;
/// Most episodes of one environment in an evaluation.
const MOST_EPISODES: u64 = 1_000_000;
/// Most adapters beside the one in training.
const MOST_SHADOWS: usize = 64;
const ESTIMATORS: &[(&str, Estimator)] = &[
    ("group_mean", Estimator::GroupMean),
    ("group_std", Estimator::GroupStd),
    ("leave_one_out", Estimator::LeaveOneOut),
    ("none", Estimator::None),
];
const JUDGES: &[(&str, Judge)] =
    &[("sampled", Judge::Sampled), ("latest", Judge::Latest), ("base", Judge::Base)];

const SHADOW_FROM: &[(&str, ShadowFrom)] = &[("policy", ShadowFrom::Policy), ("base", ShadowFrom::Base)];

/// A stretch of time such as `90m`, `6h` or `1d 12h`.
pub(super) fn time(written: &str) -> Result<Duration, String> {
    let hint = "it must be a time such as 90m or 6h";
    let span: jiff::SignedDuration = written.parse().map_err(|_| format!("is \"{written}\", {hint}"))?;
    let time = span.unsigned_abs();
    if span.is_positive() { Ok(time) } else { Err(format!("is \"{written}\", {hint}")) }
}

fn parse_error(origin: &str, message: String) -> ConfigError {
    ConfigError::Parse { origin: origin.into(), suggestion: nearest_key(&message), message }
}

#[cfg(test)]
mod tests;
