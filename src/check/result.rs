//! Checks whether a run would start, by doing what a run does before its first step.

use super::model::LocalModel;
use super::{
    CostForecast, EnvironmentUsage, MemoryUse, StepRequest, TokenEstimate, machine, memory as memory_of,
    requests, stub_model, total_bytes,
};
use crate::assemble::{self, ComparedEnvironment, FirstWeights};
use crate::config::environments::EnvPlan;
use crate::config::plan::RunPlan;
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::recommended;
use crate::run_folder::{self, FolderOutlook};
use crate::tracking;
use anyhow::Context as _;
use indicatif::HumanBytes;
use minds_core::chat::{Renderer, Tokenizer};
use minds_core::environment::Environment;
use minds_core::sampling::SamplingParams;
use minds_environments::render;
use minds_environments::render::template::ThinkingSwitch;
use minds_environments::worker::ModelProfile;
use minds_models::{ByteTokenizer, ModelCache, PublishedSettings};
use std::sync::Arc;

/// Context length passed to a Python package while the real one is unknown, in tokens.
const CONTEXT: usize = 1 << 15;

/// Results of checking a run that would start.
pub struct CheckResult {
    /// The plan of the run.
    pub plan: RunPlan,
    /// Name of the renderer of conversations.
    pub renderer: String,
    /// Description of where the model is, or how it would be fetched.
    pub model: String,
    /// Longest sequence in tokens, where it is known.
    pub context: Option<usize>,
    /// Estimated tokens of one step.
    pub tokens: TokenEstimate,
    /// Most cost of the steps left, on a server, where the prompts are known.
    pub forecast: Option<CostForecast>,
    /// Requests of a step to the service.
    pub requests: Vec<StepRequest>,
    /// Memory use of the embedded engine, by part.
    pub memory: Vec<MemoryUse>,
    /// The weights that a new run starts from, if they are not those of the base model.
    pub first_weights: Option<FirstWeights>,
    /// State of the run folder, if the config names one.
    pub folder: Option<FolderOutlook>,
    /// Warnings that do not prevent a run.
    pub warnings: Vec<String>,
    /// Whether the check sent no requests.
    pub offline: bool,
    /// Steps that were tried, with their results.
    pub tried: Vec<String>,
}

impl CheckResult {
    /// Does everything that a run does before its first step; `offline` sends no requests and fetches nothing.
    ///
    /// # Errors
    /// A run would not start because of the config (2), or because of the model or the service (3).
    pub fn run(mut plan: RunPlan, offline: bool) -> Result<Self, CommandError> {
        plan.can_train().or_exit(ProcessExit::Config)?;
        assemble::fit_epochs(&mut plan).or_exit(ProcessExit::Config)?;
        let folder = plan.output_dir.as_deref().map(|path| run_folder::inspect(path, &plan.resolved));
        let folder = folder.transpose().or_exit(ProcessExit::Config)?;
        let first_weights = match folder {
            Some(FolderOutlook::Resumes { .. }) => None,
            _ => FirstWeights::find(&plan).or_exit(ProcessExit::Config)?,
        };
        assemble::teacher_context(&plan).or_exit(ProcessExit::Config)?;
        let place = plan.output_dir.clone().unwrap_or_else(|| "outputs".into());
        let natives: Vec<Option<Arc<dyn Environment>>> = plan
            .envs
            .iter()
            .map(|env| assemble::native(&plan, env))
            .collect::<Result<_, _>>()
            .or_exit(ProcessExit::Config)?;
        let pythons: Vec<EnvPlan> = plan
            .envs
            .iter()
            .zip(&natives)
            .filter(|(_, native)| native.is_none())
            .map(|(env, _)| env.clone())
            .collect();
        pythons.iter().try_for_each(|env| assemble::find_python(&plan, env)).or_exit(ProcessExit::Config)?;
        assemble::check_key(&plan).or_exit(ProcessExit::Config)?;
        let mut tried = Vec::new();
        let imported = tracking::import_packages(&plan.tracking)
            .map_err(|problem| plan.wrong("log.to", problem))
            .or_exit(ProcessExit::Config)?;
        if !imported.is_empty() {
            tried.push(format!(
                "{} can be imported by `{}`",
                imported.join(", "),
                plan.tracking.python.display()
            ));
        }
        let prices = assemble::prices(&plan, offline).or_exit(ProcessExit::Config)?;
        if !offline {
            tried.extend(assemble::probe_broker(&plan)?);
        }
        let mut model = LocalModel::find(&plan)?;
        if !offline {
            tried.extend(model.fetch_text(&plan)?);
        }
        let (renderer, mut warnings) = match &model.tokenizer {
            Some(tokenizer) => {
                let (renderer, warnings) =
                    assemble::renderer(&plan, tokenizer.clone()).or_exit(ProcessExit::Config)?;
                (Some(renderer), warnings)
            }
            None => (None, Vec::new()),
        };
        if offline && plan.nats.is_some() {
            warnings
                .push("scorer.transport: the broker was not tried; `check` without --offline does".into());
        }
        let mut context = model.architecture.as_ref().map(|shape| shape.context);
        let probed = if offline { None } else { assemble::probe_service(&plan)? };
        if let Some((info, keeps_samplers)) = probed {
            assemble::check_samplers(&plan, &info.name, keeps_samplers).or_exit(ProcessExit::Config)?;
            let key = if plan.service.has_key() { "accepts the key" } else { "needs no key" };
            tried.push(format!(
                "{} answers, {key}, opens a session and offers {}",
                plan.service.name(),
                info.base_model
            ));
            context = Some(info.context);
        }
        if let Some(context) = context {
            plan.fit_answers(context);
        }
        if !offline {
            for env in &pythons {
                let profile = profile(&plan, renderer.clone(), model.tokenizer.clone(), context)?;
                tried.push(try_out(&plan, env, profile)?);
            }
        }

        let native: Vec<&dyn Environment> = natives.iter().flatten().map(|env| &**env).collect();
        let usage = EnvironmentUsage {
            self_driven: !pythons.is_empty(),
            // For a Python environment this and the next are known only when it makes a query.
            queries: !pythons.is_empty() || native.iter().any(|env| env.queries_policy()),
            measure: native.iter().any(|env| env.needs_shadow_adapters()),
            evaluated: plan.envs.iter().filter(|env| env.weight == 0.0).count() as u64,
        };
        let compared: Vec<ComparedEnvironment<'_>> = plan
            .envs
            .iter()
            .zip(&natives)
            .filter_map(|(env, native)| {
                let environment = native.as_deref()?;
                Some(ComparedEnvironment { name: &env.name, trained: env.weight > 0.0, environment })
            })
            .collect();
        warnings.extend(assemble::contamination(&compared));
        let tokens = TokenEstimate::of(&plan, &native, renderer.as_deref());
        let done = match &folder {
            Some(FolderOutlook::Resumes { step }) => *step,
            _ => 0,
        };
        let steps = plan.pipeline.train.max_steps.saturating_sub(done);
        // What a conversation costs is known when it has been made tokens.
        let forecast = match plan.pipeline.is_supervised() {
            true => None,
            false => CostForecast::of(&plan, &tokens, steps, prices.prices.as_ref()),
        };
        warnings.extend(prices.note);
        if let (Some(max_usd), Some(usd)) = (plan.budget.max_usd, forecast.and_then(|cost| cost.usd_total))
            && usd > max_usd
        {
            warnings.push(format!(
                "budget.max_usd: the run may stop before its last step, for its steps can cost {usd:.2} USD and the cap is \
                 {max_usd}"
            ));
        }
        let memory = model
            .architecture
            .as_ref()
            .map(|shape| memory_of(&plan, shape, usage.measure))
            .unwrap_or_default();
        warnings.extend(concerns(&plan, context, &tokens, &memory));
        warnings.extend(run_folder::lock_warning(&place));
        let published = PublishedSettings::read(&plan.base_model, &ModelCache::from_env())
            .map_err(|error| assemble::no_model(&plan, error))?;
        let rate = plan.pipeline.train.adam.learning_rate;
        warnings.extend(recommended::learning_rate_note(&plan.base_model, &published, rate));
        warnings.extend(thinking_note(&plan, model.tokenizer.as_deref()));
        Ok(Self {
            renderer: renderer_name(&plan, renderer.as_deref()),
            first_weights,
            model: model.place,
            context,
            requests: requests(&plan, usage),
            tokens,
            forecast,
            memory,
            folder,
            warnings: plan.warnings.iter().cloned().chain(warnings).collect(),
            offline,
            tried,
            plan,
        })
    }
}

/// Completions with fewer tokens leave no room for thoughts.
const SHORT_COMPLETION: usize = 512;

/// A note that thoughts will be cut off by the limit of a completion.
fn thinking_note(plan: &RunPlan, tokenizer: Option<&dyn Tokenizer>) -> Option<String> {
    let template = tokenizer?.chat_template()?;
    let switch = ThinkingSwitch::of(template).ok().flatten()?;
    let ThinkingSwitch { variable, is_on } = switch;
    let thinks = plan.template_args.get(variable).map_or(is_on, |value| value == true);
    let limit = plan.sampling.max_tokens;
    let is_named = plan.renderer.as_deref().is_some_and(|name| name != render::TEMPLATE);
    (thinks && !is_named && limit < SHORT_COMPLETION).then(|| {
        format!(
            "trainer.args.max_new_tokens: the model thinks before it answers, and {limit} tokens may end in the middle of its \
             thoughts; `[model] template_args = {{ {variable} = false }}` turns them off"
        )
    })
}

/// The name of the renderer, or what it depends on while the model's tokenizer is not here.
fn renderer_name(plan: &RunPlan, renderer: Option<&dyn Renderer>) -> String {
    let named = || plan.renderer.clone().unwrap_or_else(|| "as the model's tokenizer says".into());
    renderer.map_or_else(named, |renderer| renderer.name().to_owned())
}

/// Loads a Python package with what is on this machine, and runs one rollout against a stand-in for the model.
///
/// # Errors
/// It cannot be loaded, or its rollout has no reward (2).
pub fn try_package(plan: &RunPlan, env: &EnvPlan) -> Result<String, CommandError> {
    // A model that is missing is a finding of its own.
    let model = LocalModel::find(plan).ok();
    let tokenizer = model.as_ref().and_then(|model| model.tokenizer.clone());
    let renderer = tokenizer.clone().and_then(|tokenizer| assemble::renderer(plan, tokenizer).ok());
    let renderer = renderer.map(|(renderer, _)| renderer);
    let context = model.and_then(|model| model.architecture).map(|shape| shape.context);
    try_out(plan, env, profile(plan, renderer, tokenizer, context)?)
}

/// The model profile for a Python package; where no tokenizer is present, one that suffices to load it.
fn profile(
    plan: &RunPlan,
    renderer: Option<Arc<dyn Renderer>>,
    tokenizer: Option<Arc<dyn Tokenizer>>,
    context: Option<usize>,
) -> Result<ModelProfile, CommandError> {
    let (renderer, tokenizer) = match (renderer, tokenizer) {
        (Some(renderer), Some(tokenizer)) => (renderer, tokenizer),
        _ => {
            let bytes: Arc<dyn Tokenizer> = Arc::new(ByteTokenizer);
            let renderer = minds_environments::render::renderer("role_colon", bytes.clone());
            (renderer.or_exit(ProcessExit::Failed)?, bytes)
        }
    };
    Ok(ModelProfile {
        sampling: SamplingParams { stop: renderer.stop(), ..plan.sampling.clone() },
        renderer,
        tokenizer,
        context: context.unwrap_or(CONTEXT),
        base_model: plan.base_model.clone(),
    })
}

/// Loads a Python package as a run would, runs one rollout against a stand-in for the model, and unloads it.
fn try_out(plan: &RunPlan, env: &EnvPlan, profile: ModelProfile) -> Result<String, CommandError> {
    let loaded = assemble::python(plan, env, profile.clone()).or_exit(ProcessExit::Config)?;
    let loading = format!(
        "{} was loaded on Python {}: {} items",
        env.name,
        loaded.description().python,
        loaded.items()
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("failed to start a thread").or_exit(ProcessExit::Failed)?;
    match runtime.block_on(stub_model::run_rollouts(&loaded, plan.group_size.get(), profile)) {
        Ok(rollouts) => {
            let rewards: Vec<String> =
                rollouts.iter().map(|rollout| rollout.score.reward.get().to_string()).collect();
            Ok(format!("{loading}; a test rollout without the model has the reward {}", rewards.join(", ")))
        }
        Err(missing) => {
            let problem = format!(
                "names an environment that fails: {loading}, but a test rollout, in which the completion was {:?}, has no reward (`check --offline` \
                 runs no rollout): {missing}",
                stub_model::COMPLETION
            );
            Err(plan.wrong(&format!("{}.id", env.key), problem)).or_exit(ProcessExit::Config)
        }
    }
}

/// Warnings that follow from the estimates rather than from the plan alone.
fn concerns(
    plan: &RunPlan,
    context: Option<usize>,
    tokens: &TokenEstimate,
    memory: &[MemoryUse],
) -> Vec<String> {
    let mut concerns = Vec::new();
    if plan.broker().is_err() {
        concerns
            .push("nats.url: neither it nor NATS_URL is set; a run needs the broker's address".to_owned());
    }
    if let (Some(context), Some(prompts)) = (context, &tokens.prompts)
        && prompts.longest + plan.sampling.max_tokens as u64 > context as u64
    {
        concerns.push(format!(
            "trainer.args.max_new_tokens: after a prompt of {} tokens there is room for {} of the {} tokens of an answer",
            prompts.longest,
            (context as u64).saturating_sub(prompts.longest),
            plan.sampling.max_tokens
        ));
    }
    let needed = total_bytes(memory);
    if let Some(free) = machine::memory().filter(|free| *free < needed) {
        concerns.push(format!(
            "memory: {} are free; a smaller model, engine.kv_cache_mib or trainer.training_rank takes less",
            HumanBytes(free)
        ));
    }
    concerns
}
