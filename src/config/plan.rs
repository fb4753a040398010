//! The meaning of a config: every value resolved and checked.

use super::budget::BudgetPlan;
use super::choice::{WeightsChoice, chosen, is_none_of};
use super::environments::{EnvPlan, environments};
use super::error::{ConfigError, KeyProblem};
use super::file::{self, BaseModelConfig, ConfigFile};
use super::layers;
use super::line_up::{RetiredModel, retired_model};
use super::locations::ConfigLocations;
use super::metrics::MetricsPlan;
use super::nats::NatsPlan;
use super::rewards::{OracleWeights, ShadowFrom};
pub use super::service::{EMBEDDED, EnginePlan, HOSTED_URL, RemotePlan, ServicePlan};
use super::simulate::SimulatePlan;
use super::teacher::{TeacherModel, TeacherPlan};
use super::tracking::TrackingPlan;
use super::trainer::ReferenceWeights;
use super::variables::ProcessVariables;
use super::warm_start::WarmStart;
use super::{pipeline, rewards, supervised, trainer};
use crate::cli;
use minds_core::advantage::Estimator;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::record::WrittenRollouts;
use minds_core::sampling::SamplingParams;
use minds_environments::native::{self, is_path};
use minds_environments::render;
use minds_stages::evaluator::EvaluatorOptions;
use minds_stages::pipeline::PipelineOptions;
use minds_stages::policy::QueryLimits;
use minds_stages::remote::BrokerOptions;
use minds_stages::shadow::ShadowTrainerOptions;
use serde_json::{Map, Value};
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
    /// Number of passes over the conversations of a supervised run, if it decides when the run ends
    /// ([`RunPlan::fit_epochs`]).
    epochs: Option<NonZeroU64>,
    /// How completions are sampled.
    pub sampling: SamplingParams,
    /// Temperature at which environments of weight 0 are sampled, and all of them by `eval`.
    pub eval_temperature: f32,
    /// Base model: a name, a folder, a GGUF file or `tiny-random`.
    pub base_model: String,
    /// Name of the renderer, if the config sets it.
    pub renderer: Option<String>,
    /// Variables for the model's chat template.
    pub template_args: Map<String, Value>,
    /// The weights to start from, if they are not those of the base model.
    pub warm_start: Option<WarmStart>,
    /// Shape and seed of the trained adapter.
    pub lora: LoraSpec,
    /// The service that samples and trains.
    pub service: ServicePlan,
    /// Sizes and limits of the pipeline and its stages.
    pub pipeline: PipelineOptions,
    /// How `eval` measures weights. [`PipelineOptions::evaluate`] is the same if the run evaluates.
    pub evaluation: EvaluatorOptions,
    /// The reference weights of the drift penalty.
    pub kl_reference: WeightsChoice<ReferenceWeights>,
    /// The teacher, which then is the reference.
    pub teacher: Option<TeacherPlan>,
    /// The weights that answer logprob queries of rewards.
    pub oracle: WeightsChoice<OracleWeights>,
    /// Limits on the logprob queries of rewards.
    pub queries: QueryLimits,
    /// Longest that one reward may take.
    pub score_timeout: Duration,
    /// The broker of the run's workers, if it has any.
    pub nats: Option<NatsPlan>,
    /// The shadow adapters, which measure gradient steps.
    pub shadow: ShadowTrainerOptions,
    /// Weights that shadow adapters start from.
    pub shadow_from: ShadowFrom,
    /// Prices of the service's tokens, and the cap.
    pub budget: BudgetPlan,
    /// Time after which the run stops and saves.
    pub deadline: Option<Duration>,
    /// Whether event files are written for TensorBoard.
    pub tensorboard: bool,
    /// Which of the trained rollouts the run writes.
    pub rollouts: WrittenRollouts,
    /// The experiment trackers that show the run.
    pub tracking: TrackingPlan,
    /// Number of newest checkpoints to keep; `None` for all.
    pub keep_states: Option<NonZeroUsize>,
    /// Time after which the server deletes a checkpoint by itself; `None` for never.
    pub state_ttl: Option<Duration>,
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
        let mut plan = Self::decide(file, locations, &command.config, variables)?;
        plan.warnings.extend(variables.without_effect(&plan.named_variables()));
        Ok(plan)
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
                ..file::BaseModelConfig::default()
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

    /// The plan of a config that a run has sent to a worker.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn for_worker(config: ConfigFile) -> Result<Self, ConfigError> {
        let origin = "the run's offer";
        let locations = ConfigLocations::new(origin.into(), "");
        Self::decide(config, locations, Path::new(origin), &ProcessVariables::default())
    }

    fn decide(
        file: ConfigFile,
        locations: ConfigLocations,
        path: &Path,
        variables: &ProcessVariables,
    ) -> Result<Self, ConfigError> {
        let decided = Self::of_tables(file, locations.clone(), path, variables);
        let plan = decided.map_err(|KeyProblem { key, problem }| locations.wrong(&key, problem))?;
        Ok(Self { warnings: plan.collect_warnings(), ..plan })
    }

    /// The plan without its warnings.
    fn of_tables(
        file: ConfigFile,
        locations: ConfigLocations,
        path: &Path,
        variables: &ProcessVariables,
    ) -> Result<Self, KeyProblem> {
        let ModelChoice { base_model, renderer, template_args, warm_start } = model(&file)?;
        file.simulate.check(chosen(file.scorer.transport))?;
        let envs = environments(&file)?;
        let service = ServicePlan::decide(&file, variables)?;
        let pipeline = pipeline::pipeline(&file, &service)?;
        trainer::check_loss(pipeline.train.loss, &service)?;
        if let (name, Some(variant)) = minds_models::split_variant(&base_model)
            && service.engine().is_some()
        {
            let problem =
                format!("is {base_model:?}: the embedded engine has no variant {variant}: name {name} alone");
            return Err(KeyProblem::new("model.base_model", problem));
        }
        let lora = trainer::lora(&file.trainer, pipeline.seed)?;
        Ok(Self {
            origin: path.display().to_string(),
            locations,
            stem: path.file_stem().map_or_else(|| "run".into(), |s| s.to_string_lossy().into_owned()),
            output_dir: file.output_dir.clone(),
            envs,
            group_size: match pipeline.is_supervised() {
                true => NonZeroU32::MIN,
                false => trainer::group_size(&file.trainer)?,
            },
            epochs: supervised::epochs(&file)?,
            sampling: trainer::sampling(&file.trainer.args)?,
            eval_temperature: trainer::eval_temperature(&file)?,
            base_model,
            renderer,
            template_args,
            warm_start,
            evaluation: pipeline::evaluation(&file)?,
            kl_reference: file.trainer.kl_reference.clone().unwrap_or_default(),
            teacher: TeacherPlan::decide(&file)?,
            oracle: file.scorer.policy.clone().unwrap_or_default(),
            queries: rewards::queries(&file.scorer)?,
            score_timeout: rewards::score_timeout(&file.scorer)?,
            nats: NatsPlan::decide(&file, variables)?,
            shadow: rewards::shadow(&file.shadow, &lora, pipeline.retry)?,
            shadow_from: chosen(file.shadow.from),
            budget: BudgetPlan::decide(&file.budget, &service)?,
            deadline: time("run.deadline", file.run.deadline.as_deref())?,
            tensorboard: file.log.tensorboard.unwrap_or(true),
            rollouts: match pipeline.is_supervised() {
                true => WrittenRollouts::Off,
                false => chosen(file.log.rollouts),
            },
            tracking: TrackingPlan::decide(&file)?,
            keep_states: trainer::keep_states(&file.trainer)?,
            state_ttl: time("trainer.state_ttl", file.trainer.state_ttl.as_deref())?,
            metrics: MetricsPlan::decide(&file.metrics, variables)?,
            simulate: file.simulate.clone(),
            lora,
            service,
            pipeline,
            resolved: file,
            warnings: Vec::new(),
        })
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

    /// Where the broker of the run's workers is, if it has any.
    ///
    /// # Errors
    /// It has workers, and no address is given.
    pub fn broker(&self) -> Result<Option<&BrokerOptions>, ConfigError> {
        let broker = self.nats.as_ref().map(NatsPlan::broker).transpose();
        broker.map_err(|KeyProblem { key, problem }| self.wrong(&key, problem))
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

    /// Has the run end after its epochs over `rows` conversations, if it counts epochs. The last batch may begin another one.
    pub fn fit_epochs(&mut self, rows: NonZeroU64) {
        if let Some(epochs) = self.epochs {
            let groups = self.pipeline.batch.groups_per_batch.get() as u64;
            self.pipeline.train.max_steps = epochs.saturating_mul(rows).get().div_ceil(groups);
        }
    }

    /// The same with another model on the same service, whose prompts are those of this plan's renderer.
    #[must_use]
    pub fn with_model(&self, base_model: &str, renderer: &str) -> Self {
        Self { base_model: base_model.to_owned(), renderer: Some(renderer.to_owned()), ..self.clone() }
    }

    /// Saved sampler weights that the config names.
    #[must_use]
    pub fn pinned(&self) -> Vec<String> {
        let teacher = self.teacher.as_ref().and_then(|teacher| match &teacher.model {
            TeacherModel::Saved(path) => Some(path.as_str()),
            TeacherModel::Base | TeacherModel::Other(_) => None,
        });
        let named = [self.oracle.pinned(), self.kl_reference.pinned(), teacher];
        named.into_iter().flatten().map(str::to_owned).collect()
    }

    /// Warnings that do not prevent a run.
    fn collect_warnings(&self) -> Vec<String> {
        let PipelineOptions { max_staleness, ref batch, ref train, .. } = self.pipeline;
        let SamplingParams { temperature, top_k, top_p, .. } = self.sampling;
        let warmup = train.rate.warmup;
        let general = [
            (
                !train.is_supervised()
                    && self.pipeline.evaluate.is_some()
                    && self.envs.iter().all(|env| env.weight > 0.0),
                "trainer.eval_every: nothing is evaluated, for no environment of [[envs]] has the weight 0"
                    .into(),
            ),
            (
                temperature != 1.0 || top_k.is_some() || top_p < 1.0,
                "trainer.args: the sampling distribution differs from the one whose logprobs are trained"
                    .into(),
            ),
            (
                train.loss == Loss::ImportanceSampling && max_staleness > 2,
                format!(
                    "trainer.loss_fn: importance_sampling does not bound the ratios of stale rollouts, which may be \
                     {max_staleness} steps old: cispo truncates them, and is the default"
                ),
            ),
            (
                !train.is_supervised() && self.group_size.get() == 1 && batch.estimator != Estimator::None,
                "trainer.rollouts_per_example: a group of one has no baseline, so nothing is learnt".into(),
            ),
            (
                self.state_ttl.is_some() && !self.service.expires_checkpoints(),
                "trainer.state_ttl: the embedded engine's states are files of the run folder, which stay: \
                 `keep_states` bounds their number"
                    .into(),
            ),
            (
                warmup >= train.max_steps,
                format!("optim.warmup_steps: the run ends before the {warmup} steps of its warm-up do"),
            ),
            (
                !train.is_supervised() && self.resolved.trainer.args.max_new_tokens.is_none(),
                "trainer.args.max_new_tokens is not set: answers may be 2048 tokens long".into(),
            ),
        ];
        let true_ones = general.into_iter().filter_map(|(holds, warning)| holds.then_some(warning));
        true_ones
            .chain(self.retired_model())
            .chain(self.other_defaults())
            .chain(self.hidden_packages())
            .collect()
    }

    /// The successor of a model that the hosted service no longer offers.
    fn retired_model(&self) -> Option<String> {
        let RetiredModel { name, date, successor } = retired_model(&self.base_model)?;
        self.service.is_hosted().then(|| {
            format!(
                "model.base_model: Tinker's hosted service retired {name} on {date}; {successor} takes its place"
            )
        })
    }

    /// The environment variables that the config names.
    fn named_variables(&self) -> Vec<&str> {
        let ConfigFile { tinker, metrics, .. } = &self.resolved;
        let passed = self.envs.iter().flat_map(|env| &env.options.pass_env);
        tinker.api_key_env.iter().chain(&metrics.token_env).chain(passed).map(String::as_str).collect()
    }

    /// Missing keys whose default differs in the original harness, if the config looks like one for it: it names packages
    /// by their folders, and the variable of the key.
    fn other_defaults(&self) -> Vec<String> {
        let ConfigFile { trainer, tinker, .. } = &self.resolved;
        if tinker.api_key_env.is_none() || !self.envs.iter().all(|env| is_path(&env.options.id)) {
            return Vec::new();
        }
        let rate = self.pipeline.train.adam.learning_rate;
        let own = render::recommended(&self.base_model).filter(|own| *own != "role_colon");
        let renderer = own.filter(|_| self.renderer.is_none()).map(|own| {
            let model = &self.base_model;
            format!(
                "model.renderer_name is not set: it is {own} here, as {model} was trained, and was role_colon in the \
                 original harness"
            )
        });
        let rate = trainer.learning_rate.is_none().then(|| {
            format!(
                "trainer.learning_rate is not set: it is {rate} here and was 3.162e-6 in the original harness"
            )
        });
        let minibatches = trainer.stream_minibatches.is_none().then(|| {
            "trainer.stream_minibatches is not set: it is 1 here and was 4 in the original harness".into()
        });
        [rate, renderer, minibatches].into_iter().flatten().collect()
    }

    /// Ids that look like folders of packages, and are native environments because the folders are not there.
    fn hidden_packages(&self) -> impl Iterator<Item = String> {
        let ids = self.envs.iter().map(|env| (&env.name, &env.options.id));
        ids.filter(|(_, id)| is_path(id) && native::is_native(id)).map(|(name, id)| {
            let here = std::env::current_dir().unwrap_or_default();
            let here = here.display();
            format!(
                "{name}: there is no {id} in {here}, so this is the native environment of that name and not the package"
            )
        })
    }
}

/// The table `model` with its values checked.
struct ModelChoice {
    base_model: String,
    renderer: Option<String>,
    template_args: Map<String, Value>,
    warm_start: Option<WarmStart>,
}

fn model(file: &ConfigFile) -> Result<ModelChoice, KeyProblem> {
    let missing = || KeyProblem::new("model.base_model", "is missing: name the model to train");
    let BaseModelConfig { base_model, renderer_name: renderer, template_args, from, from_optimizer } =
        file.model.clone().ok_or_else(missing)?;
    let warm_start = WarmStart::decide(from, from_optimizer)?;
    if let Some(name) = renderer.as_deref().filter(|name| !render::names().any(|known| known == *name)) {
        return Err(KeyProblem::new("model.renderer_name", is_none_of(name, render::names())));
    }
    let unreadable = |error| KeyProblem::new("model.template_args", format!("cannot be handed on: {error}"));
    let template_args = serde_json::to_value(&template_args).map_err(unreadable)?;
    let template_args = template_args.as_object().cloned().unwrap_or_default();
    Ok(ModelChoice { base_model, renderer, template_args, warm_start })
}

/// A stretch of time such as `90m`, `6h` or `1d 12h`.
pub(super) fn time(key: &str, written: Option<&str>) -> Result<Option<Duration>, KeyProblem> {
    let Some(written) = written else { return Ok(None) };
    let span = written.parse::<jiff::SignedDuration>().ok().filter(jiff::SignedDuration::is_positive);
    let problem = || format!("is \"{written}\"; it must be a time such as 90m or 6h");
    span.map(|span| Some(span.unsigned_abs())).ok_or_else(|| KeyProblem::new(key, problem()))
}

#[cfg(test)]
pub(super) mod tests;
