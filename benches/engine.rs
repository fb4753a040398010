//! How fast the embedded engine is, beside torch and llama.cpp in the same minutes.
//!
//! Every measure is warmed up once and then taken in rounds; within a round ours and the baseline's follow each
//! other, so that a change of the machine's mood meets both. The service is called as a run calls it. The output is
//! the Markdown of `benches/README.md`.

#![expect(clippy::print_stdout, reason = "a bench's output")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the real clock")]

use anyhow::{Context as _, Result, bail};
use minds_core::architecture::Architecture;
use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::Token;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SamplingParams, Stop};
use minds_core::service::{SamplingBackend, Service as _, TrainingBackend};
use minds_engine::embedded::EmbeddedService;
use minds_engine::model::Model;
use minds_engine::runtime::EngineOptions;
use minds_engine::sample::SampleRng;
use minds_models::{FetchSources, ModelCache, resolve_from};
use serde_json::Value;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const MODEL: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";
const RANK: usize = 8;
/// Training: sequences and their lengths.
const SEQUENCES: usize = 4;
const LENGTH: usize = 256;
/// A step: samples of one prompt, and new tokens of each.
const GROUP: usize = 16;
const PROMPT: usize = 200;
const NEW: usize = 64;
/// Where decoding begins, and its passes: their mean context is `PROMPT`. The engine keeps whole pages of 32 tokens of
/// a prompt, so that one token is left to read and all sequences start in the same pass.
const CONTEXT: usize = 161;
const PASSES: usize = 78;
/// Seconds of a step whose 0.95 TFLOP run at 260 GFLOP/s, the peak of the machine that the goals were set on.
const FLOOR: f64 = 3.7;
const PYTHON: &str = "MINDS_BENCH_PYTHON";
const ROUNDS: &str = "MINDS_BENCH_ROUNDS";

fn main() -> Result<()> {
    // `cargo test --all-targets` starts benches too, without this argument.
    if !env::args().any(|arg| arg == "--bench") {
        return Ok(());
    }
    let rounds = env::var(ROUNDS).map_or(Ok(3), |n| n.parse()).context(ROUNDS)?;
    let cache = ModelCache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("../models-cache"));
    let sources = FetchSources { hub: false, ..FetchSources::from_env() };
    let files = resolve_from(MODEL, &cache, &sources, &(Arc::new(|_| ()) as _))?.open()?;
    let files = files.context("the model has no files")?;
    let model = Model::load(files.architecture().clone(), &mut |tensor| files.tensor(tensor))?;
    let mut smol = EngineBench::start(model)?;
    let mut tiny = EngineBench::start(Model::random(Architecture::tiny(), 0)?)?;
    let mut baseline = Baseline::start(files.path())?;

    println!("Load before: {}.", load());
    let train = measure(rounds, &mut || smol.train(), &mut baseline, &[("torch", "train")])?;
    let questions = [("torch", "decode"), ("llama.cpp", "llama_decode")];
    let decode = measure(rounds, &mut || smol.decode(), &mut baseline, &questions)?;
    let step = measure(rounds, &mut || smol.step(), &mut baseline, &[("torch", "step")])?;
    let tiny = measure(rounds, &mut || tiny.step(), &mut baseline, &[])?;
    println!("Load after: {}. {}.\n", load(), machine());
    match &baseline {
        Some(baseline) => println!("Baseline: {}. Best (median) of {rounds}.\n", baseline.about),
        None => println!("Baseline not run: set {PYTHON}. Best (median) of {rounds}.\n"),
    }
    report(&train, &decode, &step, &tiny);
    Ok(())
}

/// What a measure shall reach.
#[derive(Clone, Copy, Default)]
struct Goal {
    /// Times as fast as every baseline.
    speed: Option<f64>,
    /// Seconds to stay below.
    limit: Option<f64>,
}

fn report(train: &Comparison, decode: &Comparison, step: &Comparison, tiny: &Comparison) {
    let speed = |tokens: usize| move |s: f64| format!("{:.0}", tokens as f64 / s);
    let millis = |s: f64| format!("{:.1}", s * 1e3);
    let seconds = |s: f64| format!("{s:.2}");
    let none = Goal::default();
    let faster = |times| Goal { speed: Some(times), ..none };
    println!("| measure | unit | ours | torch | llama.cpp | times as fast as | goal | reached |");
    println!("|---|---|---|---|---|---|---|---|");
    row(["training, 4 × 256 tokens", "tok/s"], train, total, speed(SEQUENCES * LENGTH), faster(1.0));
    row(["decoding, batch 16, context 200", "tok/s"], decode, total, speed(GROUP), faster(1.5));
    row(["the same, per pass", "ms"], decode, total, millis, none);
    let goal = Goal { speed: Some(2.0), limit: Some(12.0) };
    row(["RL step, 16 × 64 new, prompt 200", "s"], step, total, seconds, goal);
    row(["of it sampling", "s"], step, |parts| parts[0], seconds, none);
    row(["of it training", "s"], step, |parts| parts[1], seconds, none);
    row(["RL step of the tiny model", "ms"], tiny, total, millis, Goal { limit: Some(0.2), ..none });
    let best = step.ours.best(total);
    println!("\nThe best RL step takes {:.1} times its floor of {FLOOR} s.", best / FLOOR);
}

fn total(parts: &[f64]) -> f64 {
    parts.iter().sum()
}

fn row(
    [name, unit_name]: [&str; 2],
    comparison: &Comparison,
    pick: impl Fn(&[f64]) -> f64 + Copy,
    unit: impl Fn(f64) -> String,
    goal: Goal,
) {
    let cell = |timings: &Timings| format!("{} ({})", unit(timings.best(pick)), unit(timings.median(pick)));
    let best = comparison.ours.best(pick);
    let (mut cells, mut ratios) = (Vec::new(), Vec::new());
    for baseline in ["torch", "llama.cpp"] {
        match comparison.others.iter().find(|(name, _)| *name == baseline) {
            Some((_, Ok(timings))) => {
                ratios.push((baseline, timings.best(pick) / best));
                cells.push(cell(timings));
            }
            Some((_, Err(reason))) => cells.push(reason.clone()),
            None => cells.push("–".into()),
        }
    }
    let (mut goals, mut reached) = (Vec::new(), Vec::new());
    if let Some(times) = goal.speed {
        goals.push(format!("{times} ×"));
        reached.push(match ratios.iter().all(|(_, ratio)| *ratio >= times) {
            _ if ratios.is_empty() => "?",
            true => "yes",
            false => "no",
        });
    }
    if let Some(limit) = goal.limit {
        goals.push(format!("< {}", unit(limit)));
        reached.push(if best < limit { "yes" } else { "no" });
    }
    let ratios: Vec<_> = ratios.iter().map(|(name, ratio)| format!("{name} {ratio:.2} ×")).collect();
    println!(
        "| {name} | {unit_name} | {} | {} | {} | {} | {} |",
        cell(&comparison.ours),
        cells.join(" | "),
        ratios.join(", "),
        goals.join(", "),
        reached.join(", ")
    );
}

/// The parts of each round in seconds.
#[derive(Default)]
struct Timings(Vec<Vec<f64>>);

impl Timings {
    fn best(&self, pick: impl Fn(&[f64]) -> f64) -> f64 {
        self.sorted(pick)[0]
    }

    fn median(&self, pick: impl Fn(&[f64]) -> f64) -> f64 {
        let sorted = self.sorted(pick);
        sorted[sorted.len() / 2]
    }

    fn sorted(&self, pick: impl Fn(&[f64]) -> f64) -> Vec<f64> {
        let mut picked: Vec<f64> = self.0.iter().map(|parts| pick(parts)).collect();
        picked.sort_by(f64::total_cmp);
        picked
    }
}

/// One measure, of ours and of the baselines that have it.
struct Comparison {
    ours: Timings,
    others: Vec<(&'static str, Result<Timings, String>)>,
}

fn measure(
    rounds: usize,
    ours: &mut dyn FnMut() -> Result<Vec<f64>>,
    baseline: &mut Option<Baseline>,
    questions: &[(&'static str, &str)],
) -> Result<Comparison> {
    let mut comparison = Comparison { ours: Timings::default(), others: Vec::new() };
    if baseline.is_some() {
        comparison.others.extend(questions.iter().map(|(name, _)| (*name, Ok(Timings::default()))));
    }
    for round in 0..=rounds {
        let warm = round > 0;
        let parts = ours()?;
        if warm {
            comparison.ours.0.push(parts);
        }
        let Some(baseline) = baseline else { continue };
        for ((_, timings), (_, question)) in comparison.others.iter_mut().zip(questions) {
            let Ok(rounds) = timings else { continue };
            match baseline.ask(question)? {
                Ok(parts) if warm => rounds.0.push(parts),
                Ok(_) => {}
                Err(reason) => *timings = Err(reason),
            }
        }
    }
    Ok(comparison)
}

/// The engine with an adapter.
struct EngineBench {
    runtime: Runtime,
    vocab: usize,
    random: SampleRng,
    training: Arc<dyn TrainingBackend>,
    sampler: Arc<dyn SamplingBackend>,
    /// The prompts that decoding starts from; the prefix cache holds them.
    contexts: Vec<Arc<[Token]>>,
}

impl EngineBench {
    fn start(model: Model<f32>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let vocab = model.architecture().vocab;
        let options = EngineOptions { prefix_bytes: 512 << 20, ..EngineOptions::new(MODEL) };
        let service = EmbeddedService::start(Arc::new(model), None, &options)?;
        let training = runtime.block_on(service.create_training(LoraSpec::all_linear(RANK, 0)))?;
        let sampler = runtime.block_on(training.export_sampler(None))?.sampler;
        let random = SampleRng::new(0, 0);
        let mut ours = Self { runtime, vocab, random, training, sampler, contexts: Vec::new() };
        ours.contexts = (0..GROUP).map(|_| ours.tokens(CONTEXT).into()).collect();
        Ok(ours)
    }

    fn tokens(&mut self, len: usize) -> Vec<Token> {
        (0..len).map(|_| (self.random.next_unit() * self.vocab as f64) as Token).collect()
    }

    /// Forward, backward and Adam on sequences that share nothing; every token carries loss.
    fn train(&mut self) -> Result<Vec<f64>> {
        let data = (0..SEQUENCES).map(|i| {
            let sampled = vec![-11.0; LENGTH];
            datum(&self.tokens(LENGTH + 1), &sampled, advantage(i))
        });
        let data = data.collect::<Result<Vec<_>>>()?;
        let start = Instant::now();
        self.update(data)?;
        Ok(vec![seconds(start)])
    }

    fn update(&self, data: Vec<Datum>) -> Result<()> {
        let gradient = self.training.forward_backward(data, Loss::ImportanceSampling);
        let step = self.training.optim_step(AdamParams::default());
        self.runtime.block_on(gradient)?;
        self.runtime.block_on(step)?;
        Ok(())
    }

    /// One pass of 16 unlike sequences under the adapter, drawing included. What is not a pass is subtracted.
    fn decode(&mut self) -> Result<Vec<f64>> {
        let one = self.sample_each(1)?;
        Ok(vec![(self.sample_each(PASSES + 1)? - one) / PASSES as f64])
    }

    fn sample_each(&self, max_tokens: usize) -> Result<f64> {
        self.runtime.block_on(async {
            let start = Instant::now();
            let mut all = JoinSet::new();
            for context in self.contexts.iter().cloned() {
                let sampler = self.sampler.clone();
                all.spawn(async move { sampler.sample(request(context, 1, max_tokens)).await });
            }
            while let Some(response) = all.join_next().await {
                let tokens = response??.sequences[0].tokens.len();
                if tokens != max_tokens {
                    bail!("{tokens} tokens were sampled, not {max_tokens}");
                }
            }
            Ok(seconds(start))
        })
    }

    /// A prompt never seen before, its group of samples, the gradient, Adam, and the sampler of the new weights.
    fn step(&mut self) -> Result<Vec<f64>> {
        let prompt: Arc<[Token]> = self.tokens(PROMPT).into();
        let start = Instant::now();
        let response = self.runtime.block_on(self.sampler.sample(request(prompt.clone(), GROUP, NEW)))?;
        let sample = seconds(start);
        let start = Instant::now();
        let data = response.sequences.iter().enumerate().map(|(i, sampled)| {
            let tokens = [&*prompt, &*sampled.tokens].concat();
            datum(&tokens, &sampled.logprobs, advantage(i))
        });
        self.update(data.collect::<Result<_>>()?)?;
        self.sampler = self.runtime.block_on(self.training.export_sampler(None))?.sampler;
        Ok(vec![sample, seconds(start)])
    }
}

fn seconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}

fn advantage(index: usize) -> f32 {
    if index.is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// Trains the last tokens, as many as have a sampling logprob.
fn datum(tokens: &[Token], sampled: &[f32], advantage: f32) -> Result<Datum> {
    let (len, trained) = (tokens.len() - 1, sampled.len());
    let mut logprobs = vec![0.0; len - trained];
    logprobs.extend_from_slice(sampled);
    let mut advantages = vec![0.0; len - trained];
    advantages.resize(len, advantage);
    let inputs = LossInputs::Policy { logprobs, advantages };
    Ok(Datum::new(tokens[..len].to_vec(), tokens[1..].to_vec(), inputs)?)
}

/// Temperature 1; only the length ends a sample.
fn request(prompt: Arc<[Token]>, samples: usize, max_tokens: usize) -> SampleRequest {
    let params = SamplingParams { stop: Stop::Tokens(Vec::new()), ..SamplingParams::plain(max_tokens) };
    SampleRequest::new(prompt, samples, params)
}

/// `baseline.py` as a child that answers line by line.
struct Baseline {
    /// Closed at the end, which ends the child.
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    child: Child,
    about: String,
}

impl Baseline {
    fn start(model: &Path) -> Result<Option<Self>> {
        let Some(python) = env::var_os(PYTHON) else { return Ok(None) };
        let mut child = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/baseline.py"))
            .arg(model)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context(PYTHON)?;
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("the baseline has no output")?);
        let mut baseline = Self { questions, answers, child, about: String::new() };
        let hello = baseline.answer()?;
        let llama = hello["llama_cpp"].as_str().unwrap_or("not installed");
        let about = hello["about"].as_str().unwrap_or_default();
        baseline.about = format!("{about}, llama-cpp-python {llama}");
        Ok(Some(baseline))
    }

    /// The parts of a measure in seconds, or why there are none.
    fn ask(&mut self, question: &str) -> Result<Result<Vec<f64>, String>> {
        writeln!(self.questions.as_mut().context("the baseline has ended")?, "{question}")?;
        let answer = self.answer()?;
        if let Some(parts) = answer["parts"].as_array() {
            return Ok(Ok(parts.iter().filter_map(Value::as_f64).collect()));
        }
        Ok(Err(answer["missing"].as_str().unwrap_or("no answer").into()))
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).context("the baseline failed; its message stands above")
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        drop(self.questions.take());
        drop(self.child.wait());
    }
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown").into()
}

fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!("{cores} cores of {}", name.map_or("an unknown processor", |(_, name)| name))
}
