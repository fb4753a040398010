//! `minds-actors envs`: what environments there are, what they show a model, and what an answer earns.

use super::{progress, say};
use crate::assemble::{self, Measuring};
use crate::cli::{EnvChoice, Envs};
use crate::config::{RunPlan, file, overrides};
use crate::exit::{Exit, Fault, OrExit};
use anyhow::{Context as _, anyhow};
use async_trait::async_trait;
use minds_core::backend::SamplingBackend;
use minds_core::chat::{Message, Tokenizer};
use minds_core::datum::{Datum, LossInputs};
use minds_core::environment::{Borrowed, Environment, FrozenWeights, Item, Oracle, Reply, Scene, Shift};
use minds_core::episode::{Episode, Turn};
use minds_core::ids::{EpisodeId, GroupId, ItemKey, PolicyVersion, Token};
use minds_core::reward::{Missing, Score};
use minds_core::sampling::{Sampled, StopReason};
use minds_core::schedule::Schedule;
use minds_environments::registry::{self, EnvInfo};
use minds_environments::worker::{PythonEnvironment, Voice};
use minds_models::ByteTokenizer;
use minds_stages::line::StartFrom;
use minds_stages::policy::Interviewer;
use minds_stages::queries::Queries;
use serde_json::{Value, json};
use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError};

/// Runs the command.
///
/// # Errors
/// An environment, an argument or an item that does not exist (2), a model that cannot be had (3), or a completion that
/// has no reward (1).
pub fn run(command: &Envs) -> Result<(), Fault> {
    match command {
        Envs::List => {
            for info in registry::list() {
                say!("{:20} {}", info.id, info.about);
            }
            Ok(())
        }
        Envs::Show { env } => {
            if registry::is_native(&env.name) {
                let environment = load(env)?;
                let info = registry::list().iter().find(|info| info.id == environment.id());
                show(info.expect("what was loaded is listed"), &*environment);
            } else {
                show_python(&python(env)?);
            }
            Ok(())
        }
        Envs::Sample { env, n, json } => {
            let environment = load(env)?;
            for item in first_items(&*environment, env.seed, *n) {
                if *json { say!("{}", as_json(&item)) } else { show_item(&item) }
            }
            Ok(())
        }
        Envs::Score { env, index, completion, model, renderer, json } => {
            let answer = completion_text(completion)?;
            let native = registry::is_native(&env.name).then(|| load(env)).transpose()?;
            if let Some(environment) = &native {
                check_index(env, &**environment, *index)?;
            }
            let plan = plan(env, model, renderer.as_deref())?;
            let scored = score(&plan, native, env, *index, &answer)?;
            if *json {
                say!("{}", scored.as_json())
            } else {
                scored.show()
            }
            let Err(missing) = scored.result else { return Ok(()) };
            Err(anyhow!("{} gave this completion no reward: {missing}", env.name)).or_exit(Exit::Failed)
        }
    }
}

fn args(env: &EnvChoice) -> Result<toml::Table, Fault> {
    let mut args = toml::Table::new();
    for set in &env.set {
        overrides::apply(&mut args, set).or_exit(Exit::Config)?;
    }
    Ok(args)
}

/// The smallest run with this environment and this model.
fn plan(env: &EnvChoice, model: &str, renderer: Option<&str>) -> Result<RunPlan, Fault> {
    let choice = file::Env {
        id: env.name.clone(),
        python: env.python.clone(),
        args: args(env)?,
        ..file::Env::default()
    };
    RunPlan::embedded(choice, model, renderer, env.seed).or_exit(Exit::Config)
}

fn load(env: &EnvChoice) -> Result<Arc<dyn Environment>, Fault> {
    if !registry::is_native(&env.name) {
        return Ok(Arc::new(python(env)?));
    }
    if env.python.is_some() {
        return Err(anyhow!("--python: {} is no Python package", env.name)).or_exit(Exit::Config);
    }
    let plan = plan(env, minds_models::TINY_RANDOM, None)?;
    let options = &plan.envs[0].options;
    registry::load(&options.id, &options.args, options.seed).or_exit(Exit::Config)
}

/// A Python environment without a model: it can show what it has, and not play.
fn python(env: &EnvChoice) -> Result<PythonEnvironment, Fault> {
    let plan = plan(env, minds_models::TINY_RANDOM, None)?;
    let tokenizer: Arc<dyn Tokenizer> = Arc::new(ByteTokenizer);
    let renderer = minds_environments::render::renderer("role_colon", tokenizer.clone());
    let voice = Voice {
        renderer: renderer.or_exit(Exit::Failed)?,
        tokenizer,
        sampling: plan.sampling.clone(),
        context: 1 << 16,
        base_model: plan.base_model.clone(),
    };
    PythonEnvironment::open(plan.envs[0].options.clone(), voice).or_exit(Exit::Config)
}

fn check_index(env: &EnvChoice, environment: &dyn Environment, index: u64) -> Result<(), Fault> {
    let last = environment.items().get() - 1;
    if index > last {
        return Err(anyhow!("--index {index}: {} has the items 0 to {last}", env.name)).or_exit(Exit::Config);
    }
    Ok(())
}

/// The items of a run in which nothing else is played.
fn first_items(environment: &dyn Environment, seed: u64, n: u64) -> Vec<Item> {
    let schedule = Schedule::of_one(seed, environment.items(), environment.strata());
    (0..n).map(|position| environment.item(schedule.item(position).item)).collect()
}

fn show(info: &EnvInfo, environment: &dyn Environment) {
    say!("{}: {}", info.id, info.about);
    say!("{} items, {} kinds in turn", environment.items(), environment.strata());
    say!("\narguments:{}", if info.args.is_empty() { " none" } else { "" });
    for arg in info.args {
        let only =
            arg.only_with.map_or_else(String::new, |(key, word)| format!("; only with {key} = {word}"));
        say!("  {} = {}  ({}{only})\n      {}", arg.name, arg.default(), arg.allowed(), arg.about);
    }
    say!("");
    show_item(&environment.item(0));
}

fn show_python(environment: &PythonEnvironment) {
    let found = environment.description();
    let library = found.verifiers.as_ref().map_or_else(String::new, |v| format!(", verifiers {v}"));
    say!(
        "{}: {} environment `{}` on Python {}{library}",
        environment.id(),
        found.kind,
        found.class,
        found.python
    );
    match found.columns.is_empty() {
        true => say!("{} items, made when they are played", found.items),
        false => say!("{} rows with {}", found.items, found.columns.join(", ")),
    }
    if !found.rewards.is_empty() {
        let together = if found.group_rewards { ", which compare the members of a group" } else { "" };
        say!("rewards: {}{together}", found.rewards.join(", "));
    }
    say!("");
    show_item(&environment.item(0));
}

fn show_item(item: &Item) {
    say!("--- item {}", item.index);
    if item.prompt.is_empty() {
        say!("its prompt is made when a rollout begins: a run keeps it in the folder `rollouts`");
    }
    for Message { role, content } in &item.prompt {
        say!("[{}] {content}", role.name());
    }
    if let Some(answer) = &item.answer {
        say!("answer: {answer}");
    }
    if !item.info.is_null() {
        say!("info: {}", item.info);
    }
}

fn as_json(item: &Item) -> Value {
    let mut object = json!({ "index": item.index, "prompt": item.prompt, "info": item.info });
    if let Some(answer) = &item.answer {
        object["answer"] = json!(answer);
    }
    object
}

fn completion_text(written: &str) -> Result<String, Fault> {
    match (written, written.strip_prefix('@')) {
        ("-", _) => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.context("--completion -: standard input is no text").or_exit(Exit::Config)?;
            Ok(text)
        }
        (_, Some(path)) => std::fs::read_to_string(path)
            .with_context(|| format!("--completion {written}: failed to read {path}"))
            .or_exit(Exit::Config),
        (text, None) => Ok(text.to_owned()),
    }
}

/// What an answer earned, and why.
struct Scored {
    answer: String,
    parse: Option<Value>,
    result: Result<Score, Missing>,
    queries: Vec<Value>,
}

impl Scored {
    fn as_json(&self) -> Value {
        let score = self.result.as_ref().ok();
        json!({
            "reward": score.map(|s| s.reward.get()),
            "missing": self.result.as_ref().err().map(ToString::to_string),
            "parse": self.parse,
            "queries": self.queries,
            "metrics": score.map(|s| &s.metrics),
        })
    }

    fn show(&self) {
        say!("answer   {:?}", self.answer);
        match &self.parse {
            Some(parse) => say!("parse    {parse}"),
            None => say!("parse    nothing: the answer is not valid, or its reward reads the whole text"),
        }
        for query in &self.queries {
            say!("query    {query}");
        }
        if let Ok(score) = &self.result {
            for (name, value) in &score.metrics {
                say!("{name:20} {value}");
            }
            say!("reward   {}", score.reward.get());
        }
    }
}

/// Scores an answer. Python packages are loaded here, for they write and read as the model does.
fn score(
    plan: &RunPlan,
    native: Option<Arc<dyn Environment>>,
    env: &EnvChoice,
    index: u64,
    answer: &str,
) -> Result<Scored, Fault> {
    // Shadows are kept somewhere while they measure.
    let scratch = tempfile::tempdir().context("failed to make a folder").or_exit(Exit::Failed)?;
    let ready = assemble::service(plan, Some(scratch.path().to_owned()), &progress::bars())?;
    let environment = match native {
        Some(environment) => environment,
        None => assemble::components(plan, &ready)?.remove(0).environment,
    };
    check_index(env, &*environment, index)?;
    let shadow = assemble::shadow(plan, &ready, [&*environment], StartFrom::Base);
    super::system().block_on(async {
        let sampler = ready.service.base_sampler().await.or_exit(Exit::Unavailable)?;
        let queries = Arc::new(Queries::default().with_service(ready.service.clone()));
        let _measuring = shadow.map(|shadow| Measuring::start(shadow, &queries));
        let oracle = Recorder {
            inner: Interviewer::new(sampler, queries, None),
            tokenizer: ready.tokenizer.clone(),
            queries: Mutex::default(),
        };
        let item = environment.item(index);
        let tokens = ready.renderer.answer(answer);
        let turn = Turn {
            prompt: ready.renderer.prompt(&item.prompt).into(),
            // Nobody sampled it, so there is nothing to say about how likely it was.
            answer: Sampled { logprobs: vec![0.0; tokens.len()], tokens, stop: StopReason::Stop, topk: None },
            text: answer.to_owned(),
            complete: true,
        };
        let episode = Episode {
            id: EpisodeId { group: GroupId(0), member: 0 },
            item: ItemKey { component: 0, item: index },
            policy: PolicyVersion(0),
            turns: vec![turn],
            opening: Arc::default(),
        };
        let renderer = &*ready.renderer;
        let said: Vec<Message> = item.prompt.iter().cloned().chain([Message::assistant(answer)]).collect();
        // A Python package says so itself, when it is played.
        if environment.conductor().is_none()
            && let Ok(Reply::Continue(_)) = environment.reply(&item, &said).await
        {
            let why = anyhow!(
                "{} has more turns after this completion: only a run generates and scores all of them",
                env.name
            );
            return Err(why).or_exit(Exit::Config);
        }
        let result =
            environment.score(Scene { item: &item, episode: &episode, renderer, oracle: &oracle }).await;
        let queries = oracle.queries.into_inner().unwrap_or_else(PoisonError::into_inner);
        let parse = environment.parse(&item, answer);
        Ok(Scored { answer: answer.to_owned(), parse, result, queries })
    })
}

/// Remembers what was asked, and what was answered.
struct Recorder {
    inner: Interviewer,
    tokenizer: Arc<dyn Tokenizer>,
    queries: Mutex<Vec<Value>>,
}

impl Recorder {
    fn note(&self, query: Value) {
        self.queries.lock().unwrap_or_else(PoisonError::into_inner).push(query);
    }
}

#[async_trait]
impl Oracle for Recorder {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, Missing> {
        let (before, after) = (self.tokenizer.decode(&prefix), self.tokenizer.decode(&target));
        let answer = self.inner.logprobs(prefix, target).await?;
        self.note(json!({ "prefix": before, "target": after, "logprobs": &*answer }));
        Ok(answer)
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, Missing> {
        let before = self.tokenizer.decode(&prefix);
        let answer = self.inner.next_tokens(prefix, k).await?;
        let next: Vec<_> = answer.iter().map(|(token, lp)| (self.tokenizer.decode(&[*token]), lp)).collect();
        self.note(json!({ "prefix": before, "next_tokens": next }));
        Ok(answer)
    }

    async fn shift(&self, text: Datum, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Shift, Missing> {
        let learnt: Vec<Token> = match text.inputs() {
            LossInputs::Weights(weights) => {
                let learnt = text.targets().iter().zip(weights).filter(|(_, weight)| **weight > 0.0);
                learnt.map(|(token, _)| *token).collect()
            }
            LossInputs::Policy { .. } => text.targets().to_vec(),
        };
        let learnt = self.tokenizer.decode(&learnt);
        let (before, after) = (self.tokenizer.decode(&prefix), self.tokenizer.decode(&target));
        let shift = self.inner.shift(text, prefix, target).await?;
        self.note(json!({
            "prefix": before,
            "target": after,
            "step_on": learnt,
            "before": shift.before,
            "after": shift.after,
        }));
        Ok(shift)
    }

    async fn borrow_adapter(&self) -> Result<Borrowed, Missing> {
        self.inner.borrow_adapter().await
    }

    async fn frozen(&self, weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, Missing> {
        self.inner.frozen(weights).await
    }
}
