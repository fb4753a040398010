//! `minds-actors envs`: lists environments, shows their prompts, and scores completions.

use super::print_line;
use crate::assemble::{self, StandaloneShadowTrainer};
use crate::cli::{EnvArgs, EnvsCommand};
use crate::config::{RunPlan, file, overrides};
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::regular_file;
use anyhow::{Context as _, anyhow};
use async_trait::async_trait;
use minds_core::chat::{Message, Tokenizer};
use minds_core::datum::{Datum, LossInputs};
use minds_core::environment::{
    AdapterLease, Environment, EnvironmentReply, FrozenWeights, Item, LogprobDelta, Oracle, ScoringContext,
};
use minds_core::ids::{GroupId, ItemKey, PolicyVersion, RolloutId, Token};
use minds_core::reward::{RewardError, Score};
use minds_core::rollout::{Rollout, Turn};
use minds_core::sampling::{Completion, StopReason};
use minds_core::schedule::Schedule;
use minds_core::service::SamplingBackend;
use minds_environments::args::{Arg, ArgKind};
use minds_environments::native::{self, EnvInfo};
use minds_environments::worker::{ModelProfile, PythonEnvironment};
use minds_models::ByteTokenizer;
use minds_stages::pipeline::ShadowStart;
use minds_stages::policy::LogprobOracle;
use minds_stages::policy::QueryBudget;
use serde_json::{Value, json};
use std::io::Read as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::warn;

/// Runs the command.
///
/// # Errors
/// An environment, an argument or an item does not exist (2), the model cannot be fetched (3), or the completion
/// has no reward (1).
pub fn run(command: &EnvsCommand) -> Result<(), CommandError> {
    match command {
        EnvsCommand::List => {
            for info in native::list() {
                print_line!("{:20} {}", info.id, info.about);
            }
            Ok(())
        }
        EnvsCommand::Show { env } => {
            if !native::is_native(&env.name) {
                show_python(&python(env)?);
                return Ok(());
            }
            let loaded = native(env);
            // Without its required arguments an environment cannot be loaded, but its table can be read.
            if let (Err(_), Some(info)) = (&loaded, info_of(&env.name).filter(|_| env.set.is_empty())) {
                show_arguments(info);
            }
            show(&*loaded?);
            Ok(())
        }
        EnvsCommand::Sample { env, n, json } => {
            for item in samples(env, *n)? {
                if *json { print_line!("{}", as_json(&item)) } else { show_item(&item) }
            }
            Ok(())
        }
        EnvsCommand::Score { env, index, completion, model, renderer, json } => {
            let answer = completion_text(completion)?;
            let native = native::is_native(&env.name).then(|| native(env)).transpose()?;
            if let Some(environment) = &native {
                check_index(env, &**environment, *index)?;
            }
            let is_asked = native.as_ref().is_none_or(|environment| info(&**environment).queries_model);
            let plan = match is_asked {
                true => plan(env, model, renderer.as_deref()),
                false => plan(env, minds_models::TINY_RANDOM, None),
            }?;
            let scored = score(&plan, native, env, *index, &answer)?;
            if *json {
                print_line!("{}", scored.as_json())
            } else {
                scored.show()
            }
            let Err(missing) = scored.result else { return Ok(()) };
            Err(anyhow!("{} gave this completion no reward: {missing}", env.name))
                .or_exit(ProcessExit::Failed)
        }
    }
}

fn args(env: &EnvArgs) -> Result<toml::Table, CommandError> {
    let mut args = toml::Table::new();
    for set in &env.set {
        overrides::apply(&mut args, set).or_exit(ProcessExit::Config)?;
    }
    Ok(args)
}

/// The smallest run with this environment and this model.
fn plan(env: &EnvArgs, model: &str, renderer: Option<&str>) -> Result<RunPlan, CommandError> {
    let choice = file::EnvConfig {
        id: env.name.clone(),
        python: env.python.clone(),
        args: args(env)?,
        ..file::EnvConfig::default()
    };
    RunPlan::embedded(choice, model, renderer, env.seed).or_exit(ProcessExit::Config)
}

fn native(env: &EnvArgs) -> Result<Arc<dyn Environment>, CommandError> {
    if env.python.is_some() {
        return Err(anyhow!("--python: {} is not a Python package", env.name)).or_exit(ProcessExit::Config);
    }
    let plan = plan(env, minds_models::TINY_RANDOM, None)?;
    let options = &plan.envs[0].options;
    native::load(&options.id, &options.args, options.seed).or_exit(ProcessExit::Config)
}

/// A Python environment without a model: it can show its items, but cannot run rollouts.
fn python(env: &EnvArgs) -> Result<PythonEnvironment, CommandError> {
    let plan = plan(env, minds_models::TINY_RANDOM, None)?;
    let tokenizer: Arc<dyn Tokenizer> = Arc::new(ByteTokenizer);
    let renderer = minds_environments::render::renderer("role_colon", tokenizer.clone());
    let profile = ModelProfile {
        renderer: renderer.or_exit(ProcessExit::Failed)?,
        tokenizer,
        sampling: plan.sampling.clone(),
        context: 1 << 16,
        base_model: plan.base_model.clone(),
    };
    PythonEnvironment::open(plan.envs[0].options.clone(), profile).or_exit(ProcessExit::Config)
}

fn check_index(env: &EnvArgs, environment: &dyn Environment, index: u64) -> Result<(), CommandError> {
    let last = environment.items().get() - 1;
    if index > last {
        return Err(anyhow!("--index {index}: {} has items 0 to {last}", env.name))
            .or_exit(ProcessExit::Config);
    }
    Ok(())
}

/// The first items of a run with this environment only, each with its first prompt.
fn samples(env: &EnvArgs, n: u64) -> Result<Vec<Item>, CommandError> {
    if native::is_native(&env.name) {
        return Ok(first_items(&*native(env)?, env.seed, n));
    }
    let environment = python(env)?;
    let observe = |item: Item| {
        environment.observe(item.index).unwrap_or_else(|why| {
            warn!(item = item.index, %why, "its first prompt is only known in a rollout");
            item
        })
    };
    Ok(first_items(&environment, env.seed, n).into_iter().map(observe).collect())
}

/// The first items of a run with this environment only.
fn first_items(environment: &dyn Environment, seed: u64, n: u64) -> Vec<Item> {
    let schedule = Schedule::of_one(seed, environment.items(), environment.strata());
    (0..n).map(|position| environment.item(schedule.item(position).item)).collect()
}

fn info(environment: &dyn Environment) -> &'static EnvInfo {
    let info = native::list().iter().find(|info| info.id == environment.id());
    info.expect("what was loaded is listed")
}

fn info_of(id: &str) -> Option<&'static EnvInfo> {
    let name = id.trim_end_matches('/').rsplit('/').next()?;
    native::list().iter().find(|info| info.id == name)
}

fn show(environment: &dyn Environment) {
    show_arguments(info(environment));
    print_line!("\n{} items, {} kinds in turn", environment.items(), environment.strata());
    print_line!("");
    show_item(&environment.item(0));
}

fn show_arguments(info: &EnvInfo) {
    print_line!("{}: {}", info.id, info.about);
    print_line!("\narguments:{}", if info.args.is_empty() { " none" } else { "" });
    for Arg { name, kind, only_with, about } in info.args {
        let default = match kind {
            ArgKind::RequiredText => "  (required".to_owned(),
            ArgKind::OptionalText => "  (optional".to_owned(),
            _ => format!(" = {}  (", kind.default()),
        };
        let separator = if default.ends_with('(') { "" } else { ": " };
        let only = only_with.map_or_else(String::new, |(key, word)| format!("; only with {key} = {word}"));
        print_line!("  {name}{default}{separator}{}{only})\n      {about}", kind.allowed());
    }
}

fn show_python(environment: &PythonEnvironment) {
    let found = environment.description();
    let library = found.verifiers.as_ref().map_or_else(String::new, |v| format!(", verifiers {v}"));
    print_line!(
        "{}: {} environment `{}` on Python {}{library}",
        environment.id(),
        found.kind,
        found.class,
        found.python
    );
    match found.columns.is_empty() {
        true => print_line!("{} items, created when they are sampled", found.items),
        false => print_line!("{} rows with {}", found.items, found.columns.join(", ")),
    }
    if !found.rewards.is_empty() {
        let together = if found.group_rewards { ", which compare the members of a group" } else { "" };
        print_line!("rewards: {}{together}", found.rewards.join(", "));
    }
    print_line!("");
    show_item(&environment.item(0));
}

fn show_item(item: &Item) {
    print_line!("--- item {}", item.index);
    if item.prompt.is_empty() {
        print_line!("its prompt is made when a rollout begins: a run keeps it in the folder `rollouts`");
    }
    for Message { role, content } in &item.prompt {
        print_line!("[{}] {content}", role.name());
    }
    if let Some(answer) = &item.answer {
        print_line!("answer: {answer}");
    }
    if !item.info.is_null() {
        print_line!("info: {}", item.info);
    }
}

fn as_json(item: &Item) -> Value {
    let mut object = json!({ "index": item.index, "prompt": item.prompt, "info": item.info });
    if let Some(answer) = &item.answer {
        object["answer"] = json!(answer);
    }
    object
}

fn completion_text(written: &str) -> Result<String, CommandError> {
    match (written, written.strip_prefix('@')) {
        ("-", _) => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.context("--completion -: standard input is not text").or_exit(ProcessExit::Config)?;
            Ok(text)
        }
        (_, Some(path)) => regular_file::read_text(Path::new(path))
            .with_context(|| format!("--completion {written}: failed to read {path}"))
            .or_exit(ProcessExit::Config),
        (text, None) => Ok(text.to_owned()),
    }
}

/// The reward of a completion, with its parts.
struct CompletionScore {
    answer: String,
    parse: Option<Value>,
    result: Result<Score, RewardError>,
    queries: Vec<Value>,
}

impl CompletionScore {
    fn as_json(&self) -> Value {
        let score = self.result.as_ref().ok();
        json!({
            "reward": score.map(|s| s.reward.get()),
            "reward_error": self.result.as_ref().err().map(ToString::to_string),
            "parse": self.parse,
            "queries": self.queries,
            "metrics": score.map(|s| &s.metrics),
        })
    }

    fn show(&self) {
        print_line!("answer   {:?}", self.answer);
        match &self.parse {
            Some(parse) => print_line!("parse    {parse}"),
            None => print_line!("parse    nothing: the answer is not valid"),
        }
        for query in &self.queries {
            print_line!("query    {query}");
        }
        if let Ok(score) = &self.result {
            for (name, value) in &score.metrics {
                print_line!("{name:20} {value}");
            }
            print_line!("reward   {}", score.reward.get());
        }
    }
}

/// Scores a completion. Python packages are loaded here, because they need the model's tokenizer and renderer.
fn score(
    plan: &RunPlan,
    native: Option<Arc<dyn Environment>>,
    env: &EnvArgs,
    index: u64,
    answer: &str,
) -> Result<CompletionScore, CommandError> {
    // Shadow adapters are saved here while they measure.
    let scratch = tempfile::tempdir().context("failed to make a folder").or_exit(ProcessExit::Failed)?;
    let ready = assemble::service(plan, Some(scratch.path().to_owned()))?;
    let environment = match native {
        Some(environment) => environment,
        None => assemble::components(plan, &ready)?.remove(0).environment,
    };
    check_index(env, &*environment, index)?;
    let shadow = assemble::shadow(plan, &ready, [&*environment], ShadowStart::Base);
    super::system().block_on(async {
        let sampler = ready.service.base_sampler().await.or_exit(ProcessExit::Unavailable)?;
        let queries = Arc::new(QueryBudget::default().with_service(ready.service.clone()));
        let _measuring = shadow.map(|shadow| StandaloneShadowTrainer::start(shadow, &queries));
        let oracle = RecordingOracle {
            inner: LogprobOracle::new(sampler, queries, None),
            tokenizer: ready.tokenizer.clone(),
            queries: Mutex::default(),
        };
        let item = environment.item(index);
        let tokens = ready.renderer.answer(answer);
        // The completion was not sampled, so it has no logprobs.
        let logprobs = vec![0.0; tokens.len()];
        let turn = Turn {
            prompt: ready.renderer.prompt(&item.prompt).or_exit(ProcessExit::Config)?.into(),
            completion: Completion::new(tokens, logprobs, StopReason::Stop),
            text: answer.to_owned(),
            complete: true,
        };
        let id = RolloutId { group: GroupId(0), member: 0 };
        let key = ItemKey { component: 0, item: index };
        let rollout = Rollout { turns: vec![turn], ..Rollout::new(id, key, PolicyVersion(0)) };
        let renderer = &*ready.renderer;
        let said: Vec<Message> = item.prompt.iter().cloned().chain([Message::assistant(answer)]).collect();
        // A Python package reports this itself when its rollout runs.
        if environment.self_driven().is_none()
            && let Ok(EnvironmentReply::Continue(_)) = environment.reply(&item, &said).await
        {
            let why = anyhow!(
                "{} has more turns after this completion: only a run generates and scores all of them",
                env.name
            );
            return Err(why).or_exit(ProcessExit::Config);
        }
        let result = environment
            .score(ScoringContext { item: &item, rollout: &rollout, renderer, oracle: &oracle })
            .await;
        let queries = oracle.queries.into_inner().unwrap_or_else(PoisonError::into_inner);
        let parse = environment.parse(&item, answer);
        Ok(CompletionScore { answer: answer.to_owned(), parse, result, queries })
    })
}

/// Records every query with its response.
struct RecordingOracle {
    inner: LogprobOracle,
    tokenizer: Arc<dyn Tokenizer>,
    queries: Mutex<Vec<Value>>,
}

impl RecordingOracle {
    fn note(&self, query: Value) {
        self.queries.lock().unwrap_or_else(PoisonError::into_inner).push(query);
    }
}

#[async_trait]
impl Oracle for RecordingOracle {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        let before = self.tokenizer.decode(&prefix);
        let after = self.tokenizer.decode(&target);
        let answer = self.inner.logprobs(prefix, target).await?;
        self.note(json!({ "prefix": before, "target": after, "logprobs": &*answer }));
        Ok(answer)
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        let before = self.tokenizer.decode(&prefix);
        let answer = self.inner.next_tokens(prefix, k).await?;
        let next: Vec<_> = answer.iter().map(|(token, lp)| (self.tokenizer.decode(&[*token]), lp)).collect();
        self.note(json!({ "prefix": before, "next_tokens": next }));
        Ok(answer)
    }

    async fn logprob_delta(
        &self,
        text: Datum,
        prefix: Arc<[Token]>,
        target: Arc<[Token]>,
    ) -> Result<LogprobDelta, RewardError> {
        let learnt: Vec<Token> = match text.inputs() {
            LossInputs::Weights(weights) => {
                let learnt = text.targets().iter().zip(weights).filter(|(_, weight)| **weight > 0.0);
                learnt.map(|(token, _)| *token).collect()
            }
            LossInputs::Policy { .. } => text.targets().to_vec(),
        };
        let learnt = self.tokenizer.decode(&learnt);
        let before = self.tokenizer.decode(&prefix);
        let after = self.tokenizer.decode(&target);
        let shift = self.inner.logprob_delta(text, prefix, target).await?;
        self.note(json!({
            "prefix": before,
            "target": after,
            "step_on": learnt,
            "before": shift.before,
            "after": shift.after,
        }));
        Ok(shift)
    }

    async fn lease_adapter(&self) -> Result<AdapterLease, RewardError> {
        self.inner.lease_adapter().await
    }

    async fn frozen(&self, weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, RewardError> {
        self.inner.frozen(weights).await
    }
}
