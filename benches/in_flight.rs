//! Steps a second with in-flight weights and with snapshots, with equal `async_off_policy_steps`: the real pipeline over
//! the embedded engine, on answers with a long tail.
//!
//! The two take turns, so that a change of the machine's load meets both. Prints the Markdown of `benches/README.md`.

#![expect(clippy::print_stdout, reason = "a bench's output")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the real clock")]

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use minds_core::advantage::Estimator;
use minds_core::architecture::Architecture;
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::ids::PolicyVersion;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::{AdamParams, LearningRateSchedule};
use minds_core::record::StepRecord;
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use minds_core::sampling::{SamplingParams, Stop};
use minds_core::service::{SamplerWeights, Service as _};
use minds_engine::embedded::EmbeddedService;
use minds_engine::model::Model;
use minds_engine::runtime::{EngineOptions, SwapKv};
use minds_models::ByteTokenizer;
use minds_stages::batcher::{
    BatcherOptions, ConstantGroups, CpuPool, LengthShaping, LossWeighting, StalenessHandling,
};
use minds_stages::messages::MixtureComponent;
use minds_stages::pipeline::{Pipeline, PipelineEvent, PipelineOptions, PipelineParts, ResumePoint};
use minds_stages::policy::{QueryBudget, QueryLimits};
use minds_stages::scorer::LogprobSource;
use minds_stages::service::retry::Retry;
use minds_stages::telemetry::meters::PipelineMeters;
use minds_stages::trainer::TrainerOptions;
use std::env;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

/// Nine of ten groups have short answers, one of ten has long ones.
const SHORT: usize = 32;
const LONG: usize = 512;
const LONG_SHARE: f64 = 0.1;
const GROUPS: usize = 2;
const MEMBERS: u32 = 2;
const STEPS: u64 = 400;
/// Steps at the beginning that are not counted.
const WARM_UP: u64 = 40;
const ROUNDS: &str = "MINDS_BENCH_ROUNDS";

fn main() -> Result<()> {
    // `cargo test --all-targets` starts benches too, without this argument.
    if !env::args().any(|arg| arg == "--bench") {
        return Ok(());
    }
    let rounds = env::var(ROUNDS).map_or(Ok(3), |n| n.parse()).context(ROUNDS)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let model = Arc::new(Model::random(Architecture::tiny(), 0)?);
    let modes = [
        ("snapshot", SamplerWeights::Snapshot, SwapKv::Keep),
        ("inflight, kv = keep", SamplerWeights::InFlight, SwapKv::Keep),
        ("inflight, kv = recompute", SamplerWeights::InFlight, SwapKv::Recompute),
    ];
    let mut found: Vec<Vec<Figures>> = modes.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for ((_, weights, kv), found) in modes.iter().zip(&mut found) {
            let local = LocalSet::new();
            found.push(runtime.block_on(local.run_until(run(model.clone(), *weights, *kv)))?);
        }
    }
    println!(
        "| weights | s a step | times as fast as snapshot | staleness of groups | of tokens | most versions of a rollout |"
    );
    println!("|---|---|---|---|---|---|");
    let best = |figures: &[Figures]| figures.iter().map(|f| f.step_s).fold(f64::INFINITY, f64::min);
    let snapshot = best(&found[0]);
    for ((name, ..), figures) in modes.iter().zip(&found) {
        let mean = |of: fn(&Figures) -> f64| figures.iter().map(of).sum::<f64>() / figures.len() as f64;
        let step = best(figures);
        println!(
            "| {name} | {step:.3} | {:.2} | {:.2} | {:.2} | {:.0} |",
            snapshot / step,
            mean(|f| f.groups),
            mean(|f| f.tokens),
            mean(|f| f.versions)
        );
    }
    Ok(())
}

/// What one run took, after its warm-up.
struct Figures {
    step_s: f64,
    /// Mean staleness of groups and of tokens, in steps.
    groups: f64,
    tokens: f64,
    /// Most versions that sampled a rollout.
    versions: f64,
}

async fn run(model: Arc<Model<f32>>, weights: SamplerWeights, swap_kv: SwapKv) -> Result<Figures> {
    // The pipeline saves the weights at its end.
    let checkpoint_dir = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("in-flight-bench"));
    let options = EngineOptions { swap_kv, checkpoint_dir, ..EngineOptions::new("bench") };
    let service = EmbeddedService::start(model, None, &options)?;
    let training = service.create_training(LoraSpec::all_linear(32, 0)).await?;
    let sampler = training.export_sampler(None).await?.sampler;
    let in_flight = match weights {
        SamplerWeights::Snapshot => None,
        SamplerWeights::InFlight => Some(training.publish_in_flight(PolicyVersion(0)).await?),
    };
    let parts = PipelineParts {
        components: vec![component(SHORT, 1.0 - LONG_SHARE)?, component(LONG, LONG_SHARE)?],
        training,
        sampler,
        in_flight,
        logprob_source: LogprobSource::Sampled,
        reference: None,
        queries: Arc::new(QueryBudget::new(QueryLimits::default())),
        shadow: None,
        pool: CpuPool::inline(),
        meters: PipelineMeters::default(),
    };
    let mut pipeline = Pipeline::start(&pipeline_options(weights), parts, ResumePoint::default())?;
    let mut records: Vec<StepRecord> = Vec::new();
    let mut begun = Instant::now();
    loop {
        match pipeline.next().await {
            Some(PipelineEvent::Step(step)) => {
                records.push(step.record);
                if records.len() as u64 == WARM_UP {
                    begun = Instant::now();
                }
            }
            Some(PipelineEvent::Failed(why)) => bail!("{why}"),
            Some(PipelineEvent::Ended { .. }) | None => break,
            Some(_) => {}
        }
    }
    let took = begun.elapsed();
    let counted = &records[WARM_UP as usize..];
    let tokens = |record: &StepRecord| record.tokens_sampled.unwrap_or(0.0);
    let all: f64 = counted.iter().map(tokens).sum();
    let stale = |record: &StepRecord| record.staleness_token.unwrap_or(f64::NAN) * tokens(record);
    let steps = counted.len() as f64;
    Ok(Figures {
        step_s: took.as_secs_f64() / steps,
        groups: counted.iter().map(|record| record.staleness_mean.unwrap_or(0.0)).sum::<f64>() / steps,
        tokens: counted.iter().map(stale).sum::<f64>() / all,
        versions: counted
            .iter()
            .map(|record| record.version_range_max.unwrap_or(0.0) + 1.0)
            .fold(0.0, f64::max),
    })
}

/// A task whose answers have this many tokens.
fn component(tokens: usize, weight: f64) -> Result<MixtureComponent> {
    Ok(MixtureComponent {
        name: tokens.to_string(),
        environment: Arc::new(Parity),
        renderer: minds_environments::render::renderer("role_colon", Arc::new(ByteTokenizer))?,
        group_size: NonZeroU32::new(MEMBERS).context("no members")?,
        sampling: SamplingParams { stop: Stop::Tokens(vec![]), ..SamplingParams::plain(tokens) },
        max_turns: 1,
        context: 2048,
        score_timeout: Duration::from_secs(60),
        weight,
        evaluate_every: None,
    })
}

/// Half of all answers are right.
struct Parity;

#[async_trait]
impl Environment for Parity {
    fn id(&self) -> &str {
        "parity"
    }

    fn items(&self) -> NonZeroU64 {
        NonZeroU64::MAX
    }

    fn item(&self, index: u64) -> Item {
        let prompt = vec![Message::user(format!("Question {index}."))];
        Item { index, prompt, answer: None, info: serde_json::Value::Null }
    }

    fn queries_policy(&self) -> bool {
        false
    }

    async fn score(&self, context: ScoringContext<'_>) -> Result<Score, RewardError> {
        let sum: u32 = context.rollout.turns.iter().flat_map(|turn| &turn.completion.tokens).sum();
        Ok(Score { reward: Reward::new((sum % 2) as f32)?, metrics: Metrics::new() })
    }
}

fn pipeline_options(weights: SamplerWeights) -> PipelineOptions {
    let one = NonZeroUsize::MIN;
    PipelineOptions {
        seed: 1,
        max_steps_off_policy: 1,
        max_staleness: STEPS,
        resamples: 0,
        scorers: NonZeroUsize::MIN.saturating_add(15),
        restarts: 0,
        max_failed_in_a_row: 1,
        max_raised_in_a_row: 1,
        unanswered: Duration::from_secs(60),
        max_replaced_in_a_row: u64::MAX,
        retry: Retry::default(),
        batch: BatcherOptions {
            groups_per_batch: one.saturating_add(GROUPS - 1),
            estimator: Estimator::GroupMean,
            constant: ConstantGroups::Keep,
            min_members: one,
            weighting: LossWeighting::Token,
            kl_penalty: 0.0,
            rewards: true,
            length: LengthShaping::default(),
            minibatches: one,
            staleness: StalenessHandling::Wait,
        },
        train: TrainerOptions {
            loss: Loss::ImportanceSampling,
            adam: AdamParams { learning_rate: 1e-5, ..AdamParams::default() },
            rate: LearningRateSchedule::default(),
            substeps: one,
            publish_every: NonZeroU64::MIN,
            weights,
            kl_alarm: None,
            clip_multiple: 0.0,
            max_first_gap: 0.0,
            max_steps: STEPS,
            save_every: 0,
            max_refused: 1,
        },
        evaluate: None,
    }
}
