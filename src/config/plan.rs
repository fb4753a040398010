//! The meaning of a config: every value resolved and checked.

use super::batching::BatchingPlan;
use super::environments::{EnvPlan, environments};
use super::error::ConfigError;
use super::file::{self, ConfigFile};
use super::layers;
use super::learning::LearningPlan;
use super::locations::ConfigLocations;
use super::metrics::MetricsPlan;
use super::one_of;
pub use super::rewards::{OraclePlan, ShadowFrom};
use super::rewards::{RewardPlan, ShadowPlan};
pub use super::service::{EMBEDDED, EnginePlan, RemotePlan, ServicePlan};
use super::simulate::SimulatePlan;
use super::variables::ProcessVariables;
use crate::cli;
use minds_core::advantage::Estimator;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::SamplingParams;
use minds_environments::registry;
use minds_environments::render;
use minds_environments::worker::is_path;
use minds_stages::ledger::UNANSWERED;
use minds_stages::policy::QueryLimits;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A run with every setting resolved and checked.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The config's file, for messages.
    pub origin: String,
    /// Where each value was written.
    locations: ConfigLocations,
    /// The config's file name without its ending.
    pub stem: String,
    /// The run folder, if it was named.
    pub output_dir: Option<PathBuf>,
    /// Environments with their shares of the run.
    pub envs: Vec<EnvPlan>,
    /// Rollouts of each group of an item.
    pub group_size: NonZeroU32,
    /// How groups become optimizer steps.
    pub batching: BatchingPlan,
    /// Optimizer steps in all.
    pub max_steps: u64,
    /// Seed of items, samples and the adapter.
    pub seed: u64,
    /// Loss function with its settings.
    pub loss: Loss,
    /// Adam parameters before the schedule applies.
    pub adam: AdamParams,
    /// Shape and seed of the trained adapter.
    pub lora: LoraSpec,
    /// How rewards become advantages.
    pub estimator: Estimator,
    /// Time after which the run stops and saves.
    pub deadline: Option<Duration>,
    /// How long groups may wait for a response from a service before the run fails.
    pub give_up_after: Duration,
    /// Whether event files are written for TensorBoard.
    pub tensorboard: bool,
    /// Steps between checkpoints; 0 for none but the last.
    pub save_every: u64,
    /// Number of newest checkpoints to keep; `None` for all.
    pub keep_states: Option<NonZeroUsize>,
    /// Time after which the server deletes a checkpoint by itself; `None` for never.
    pub state_ttl: Option<Duration>,
    /// How completions are sampled.
    pub sampling: SamplingParams,
    /// Base model: a name, a folder, a GGUF file or `tiny-random`.
    pub base_model: String,
    /// Name of the renderer, if the config sets it.
    pub renderer: Option<String>,
    /// The service that samples and trains.
    pub service: ServicePlan,
    /// Rewards computed at a time.
    pub scorers: NonZeroUsize,
    /// The weights that answer logprob queries of rewards.
    pub oracle: OraclePlan,
    /// Limits on the logprob queries of rewards.
    pub queries: QueryLimits,
    /// Number of shadow adapters, which measure gradient steps.
    pub shadows: NonZeroUsize,
    /// LoRA shape of the shadow adapters.
    pub shadow_lora: LoraSpec,
    /// Optimizer parameters of the measured step.
    pub shadow_adam: AdamParams,
    /// Weights that shadow adapters start from.
    pub shadow_from: ShadowFrom,
    /// Steps between evaluations; 0 for none.
    pub eval_every: u64,
    /// Rollouts of each environment in an evaluation.
    pub eval_episodes: NonZeroU64,
    /// Evaluation rollouts in flight at a time.
    pub eval_concurrency: NonZeroUsize,
    /// Longest that one reward may take.
    pub score_timeout: Duration,
    /// Address and token of metrics and dashboard.
    pub metrics: MetricsPlan,
    /// The scripted service of `simulate`.
    pub simulate: SimulatePlan,
    /// The config with all overrides, as it is kept in the run folder.
    pub resolved: ConfigFile,
    /// Warnings that do not prevent a run.
    pub warnings: Vec<String>,
}

impl RunPlan {
    /// Reads the config of a `run` command and resolves every value.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(command: &cli::RunArgs, variables: &ProcessVariables) -> Result<Self, ConfigError> {
        let (file, locations) = layers::read(command, variables)?;
        Self::decide(file, locations, &command.config, variables)
    }

    /// The plan of the smallest config that names this environment and this model, on the embedded engine.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn embedded(
        env: file::EnvConfig,
        base_model: &str,
        renderer: Option<&str>,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let config = ConfigFile {
            env: Some(env),
            trainer: file::TrainerConfig { seed: Some(seed), ..file::TrainerConfig::default() },
            model: Some(file::BaseModelConfig {
                base_model: base_model.into(),
                renderer_name: renderer.map(str::to_owned),
            }),
            tinker: file::TinkerConfig { base_url: Some(EMBEDDED.into()), ..file::TinkerConfig::default() },
            ..ConfigFile::default()
        };
        let path = "the command line";
        Self::decide(
            config,
            ConfigLocations::new(path.into(), ""),
            Path::new(path),
            &ProcessVariables::default(),
        )
    }

    fn decide(
        file: ConfigFile,
        locations: ConfigLocations,
        path: &Path,
        variables: &ProcessVariables,
    ) -> Result<Self, ConfigError> {
        let bad = |key: &str, problem: String| locations.wrong(key, problem);
        let Some(model) = &file.model else {
            return Err(bad("model.base_model", "is missing: name the model to train".into()));
        };
        if let Some(name) = model.renderer_name.as_deref().filter(|name| !render::NAMES.contains(name)) {
            let problem = format!("is \"{name}\", it must be {}", one_of(name, render::NAMES.into_iter()));
            return Err(bad("model.renderer_name", problem));
        }
        let trainer = &file.trainer;
        let seed = trainer.seed.unwrap_or(0);
        let envs = environments(&file, seed).map_err(|(key, problem)| bad(&key, problem))?;
        let learning = LearningPlan::decide(&file, seed).map_err(|(key, problem)| bad(&key, problem))?;
        let LearningPlan { group_size, loss, adam, lora, estimator, sampling } = learning;
        let max_steps = trainer.total_batches.unwrap_or(100_000);
        if max_steps == 0 {
            return Err(bad("trainer.total_batches", "is 0, it must be at least 1".into()));
        }
        let batching =
            BatchingPlan::decide(&file, group_size.get()).map_err(|(key, problem)| bad(key, problem))?;
        let rewards = RewardPlan::decide(&file).map_err(|(key, problem)| bad(key, problem))?;
        let RewardPlan { scorers, oracle, queries, timeout: score_timeout } = rewards;
        let shadows = ShadowPlan::decide(&file, &lora, seed).map_err(|(key, problem)| bad(key, problem))?;
        let save_every = trainer.save_every.unwrap_or(20);
        let eval_episodes = NonZeroU64::new(file.eval.episodes.unwrap_or(64))
            .filter(|episodes| episodes.get() <= MOST_EPISODES)
            .ok_or_else(|| bad("eval.episodes", format!("must lie between 1 and {MOST_EPISODES}")))?;
        let eval_concurrency = super::at_least_one(file.eval.concurrency.unwrap_or(8))
            .map_err(|problem| bad("eval.concurrency", problem))?;
        let deadline = file.run.deadline.as_deref().map(time).transpose();
        let give_up_after = file.run.give_up_after.as_deref().map(time).transpose();
        let state_ttl = trainer.state_ttl.as_deref().map(time).transpose();
        let plan = Self {
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
            deadline: deadline.map_err(|problem| bad("run.deadline", problem))?,
            give_up_after: give_up_after
                .map_err(|problem| bad("run.give_up_after", problem))?
                .unwrap_or(UNANSWERED),
            tensorboard: file.log.tensorboard.unwrap_or(true),
            save_every,
            keep_states: keep_states(trainer.keep_states.unwrap_or(0))
                .map_err(|problem| bad("trainer.keep_states", problem))?,
            state_ttl: state_ttl.map_err(|problem| bad("trainer.state_ttl", problem))?,
            sampling,
            base_model: model.base_model.clone(),
            renderer: model.renderer_name.clone(),
            service: ServicePlan::decide(&file, variables, &bad)?,
            scorers,
            oracle,
            queries,
            shadows: shadows.adapters,
            shadow_lora: shadows.lora,
            shadow_adam: shadows.adam,
            shadow_from: shadows.from,
            eval_every: trainer.eval_every.unwrap_or(0),
            eval_episodes,
            eval_concurrency,
            score_timeout,
            metrics: MetricsPlan::decide(&file.metrics, variables)
                .map_err(|(key, problem)| bad(key, problem))?,
            simulate: SimulatePlan::decide(&file.simulate).map_err(|(key, problem)| bad(&key, problem))?,
            warnings: Vec::new(),
            origin: path.display().to_string(),
            locations,
            resolved: file,
            batching,
        };
        Ok(Self { warnings: plan.collect_warnings(), ..plan })
    }

    /// The error about a key that turned out to be invalid after the plan was made.
    #[must_use]
    pub fn wrong(&self, key: &str, problem: impl std::fmt::Display) -> ConfigError {
        self.locations.wrong(key, problem)
    }

    /// Rejects settings that `eval` accepts and training cannot use.
    ///
    /// # Errors
    /// The temperature is 0, so sampling is deterministic.
    pub fn can_train(&self) -> Result<(), ConfigError> {
        if self.sampling.temperature == 0.0 {
            let problem = "is 0: without chance there is nothing to learn from; `eval` takes it";
            return Err(self.wrong("trainer.args.temperature", problem));
        }
        Ok(())
    }

    /// Limits completions to half of the context if their limit is the whole context or more, so that prompts have the
    /// other half. Returns whether it changed the limit; the last of the warnings then says so.
    pub fn fit_answers(&mut self, context: usize) -> bool {
        let asked = self.sampling.max_tokens;
        if asked < context {
            return false;
        }
        let most = (context / 2).max(1);
        self.sampling.max_tokens = most;
        self.warnings.push(format!(
            "trainer.args.max_new_tokens is {asked}, and {} reads {context} tokens, prompt and answer together: answers \
             have at most {most}",
            self.base_model
        ));
        true
    }

    /// Saved sampler weights that the config names.
    #[must_use]
    pub fn pinned(&self) -> Vec<String> {
        let oracle = match &self.oracle {
            OraclePlan::Pinned(path) => Some(path.clone()),
            _ => None,
        };
        oracle.into_iter().chain(self.batching.kl_reference.clone()).collect()
    }

    /// Warnings that do not prevent a run.
    fn collect_warnings(&self) -> Vec<String> {
        let mut concerns = Vec::new();
        if self.eval_every > 0 && self.envs.iter().all(|env| env.weight > 0.0) {
            concerns.push(
                "trainer.eval_every: nothing is evaluated, for no environment of [[envs]] has the weight 0"
                    .into(),
            );
        }
        if self.sampling.temperature != 1.0 || self.sampling.top_k.is_some() || self.sampling.top_p < 1.0 {
            concerns.push(
                "trainer.args: the sampling distribution differs from the one whose logprobs are trained"
                    .into(),
            );
        }
        if self.loss == Loss::ImportanceSampling && self.batching.max_staleness > 2 {
            concerns.push(format!(
                "trainer.loss_fn: importance_sampling does not bound the ratios of stale rollouts, which may be {} \
                 steps old: cispo truncates them, and is the default",
                self.batching.max_staleness
            ));
        }
        if self.group_size.get() == 1 && self.estimator != Estimator::None {
            concerns.push(
                "trainer.rollouts_per_example: a group of one has no baseline, so nothing is learnt".into(),
            );
        }
        if self.state_ttl.is_some() && !self.service.expires_checkpoints() {
            concerns.push(
                "trainer.state_ttl: the embedded engine's states are files of the run folder, which stay: \
                 `keep_states` bounds their number"
                    .into(),
            );
        }
        if self.batching.rate.warmup >= self.max_steps {
            concerns.push(format!(
                "optim.warmup_steps: the run ends before the {} steps of its warm-up do",
                self.batching.rate.warmup
            ));
        }
        if self.resolved.trainer.args.max_new_tokens.is_none() {
            concerns.push("trainer.args.max_new_tokens is not set: answers may be 2048 tokens long".into());
        }
        if self.is_from_the_original() {
            concerns.extend(self.other_defaults());
        }
        for env in &self.envs {
            let id = &env.options.id;
            if is_path(id) && registry::is_native(id) {
                let here = std::env::current_dir().unwrap_or_default();
                concerns.push(format!(
                    "{}: there is no {id} in {}, so this is the native environment of that name and not the package",
                    env.name,
                    here.display()
                ));
            }
        }
        concerns
    }

    /// Whether the config looks like one for the original harness: it names packages by their folders, and
    /// the variable of the key.
    fn is_from_the_original(&self) -> bool {
        self.resolved.tinker.api_key_env.is_some() && self.envs.iter().all(|env| is_path(&env.options.id))
    }

    /// Missing keys whose default differs in the original harness.
    fn other_defaults(&self) -> Vec<String> {
        let mut others = Vec::new();
        if self.resolved.trainer.learning_rate.is_none() {
            others.push(format!(
                "trainer.learning_rate is not set: it is {} here and was 3.162e-6 in the original harness",
                self.adam.learning_rate
            ));
        }
        let own = render::recommended(&self.base_model).filter(|own| *own != "role_colon");
        if let (None, Some(own)) = (&self.renderer, own) {
            others.push(format!(
                "model.renderer_name is not set: it is {own} here, as {} was trained, and was role_colon in the original \
                 harness",
                self.base_model
            ));
        }
        if self.resolved.trainer.stream_minibatches.is_none() {
            others.push(
                "trainer.stream_minibatches is not set: it is 1 here and was 4 in the original harness"
                    .into(),
            );
        }
        others
    }
}

/// Most rollouts of one environment in an evaluation.
const MOST_EPISODES: u64 = 1_000_000;

/// Fewest checkpoints to keep: the last one may be damaged.
const LEAST_STATES: usize = 2;

fn keep_states(written: usize) -> Result<Option<NonZeroUsize>, String> {
    let Some(keep) = NonZeroUsize::new(written) else { return Ok(None) };
    if keep.get() < LEAST_STATES {
        return Err(format!("is {keep}, it must be at least {LEAST_STATES}, or 0 for all"));
    }
    Ok(Some(keep))
}

/// A stretch of time such as `90m`, `6h` or `1d 12h`.
pub(super) fn time(written: &str) -> Result<Duration, String> {
    let hint = "it must be a time such as 90m or 6h";
    let span: jiff::SignedDuration = written.parse().map_err(|_| format!("is \"{written}\", {hint}"))?;
    let time = span.unsigned_abs();
    if span.is_positive() { Ok(time) } else { Err(format!("is \"{written}\", {hint}")) }
}

#[cfg(test)]
mod tests;
