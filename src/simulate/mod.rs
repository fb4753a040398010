//! A whole run in virtual time, against a service and rewards that are scripted by `[simulate]`.
//!
//! The pipeline is the real one with the sizes of the config; only the service and the rewards are simulated. The clock
//! is virtual, so hours pass in seconds. All draws come from the seed: the same seed gives the same events at the same
//! times. Times are rounded up to a millisecond, the resolution of the runtime's clock.

mod bound;
mod environment;
mod event_log;
mod summary;
mod workers;

pub use bound::StepTimeBound;
pub use event_log::{EventFile, EventLog};
pub use summary::SimulationSummary;

use crate::config::RunPlan;
use environment::SimulatedEnvironment;
use minds_core::chat::{Renderer, Tokenizer};
use minds_core::sampling::SamplingParams;
use minds_core::service::SamplerWeights;
use minds_models::ByteTokenizer;
use minds_simulation::{RequestProgress, ServiceRequest, SimulatedService, SimulationOptions};
use minds_stages::batcher::CpuPool;
use minds_stages::messages::MixtureComponent;
use minds_stages::pipeline::{Pipeline, PipelineEvent, PipelineParts, ResumePoint};
use minds_stages::policy::QueryBudget;
use minds_stages::scorer::{LogprobSource, ReferenceModel};
use minds_stages::telemetry::meters::PipelineMeters;
use std::sync::Arc;
use std::time::Duration;
use summary::SimulationRecorder;
use tokio::time::{MissedTickBehavior, interval};

/// Mean tokens of a sample.
const MEAN_TOKENS: f64 = 16.0;

/// Readings of the mailbox depths during a step of minimum length.
const READINGS: f64 = 20.0;

/// Simulates the pipeline of a plan. Must be called in an actix system whose clock is paused.
///
/// # Errors
/// The run failed; the error says when and why.
pub async fn run(plan: &RunPlan, log: EventLog) -> anyhow::Result<SimulationSummary> {
    let mut options = plan.pipeline.clone();
    options.train.max_steps = plan.simulate.steps.get();
    let bound = StepTimeBound::of(plan);
    let log = Arc::new(log);
    let whole_batch = options.batch.groups_per_batch.get() * plan.group_size.get() as usize;
    let events = log.clone();
    let service = Arc::new(SimulatedService::new(SimulationOptions {
        completion_tokens: 2,
        // Long samples have more tokens, which weigh more in the staleness of tokens.
        tokens_per_second: (plan.simulate.sample.mean() > 0.0)
            .then(|| MEAN_TOKENS / plan.simulate.sample.mean()),
        observer: Box::new(move |request, progress| record(&events, request, progress)),
        ..plan.simulate.service(plan.pipeline.seed, whole_batch)
    }));
    let environment = Arc::new(SimulatedEnvironment::new(plan, service.clone(), log.clone()));
    let tokenizer: Arc<dyn Tokenizer> = Arc::new(ByteTokenizer);
    let renderer: Arc<dyn Renderer> = minds_environments::render::renderer("role_colon", tokenizer)?;
    let components = plan.envs.iter().map(|env| MixtureComponent {
        name: env.name.clone(),
        environment: environment.clone(),
        renderer: renderer.clone(),
        group_size: plan.group_size,
        sampling: SamplingParams { stop: renderer.stop(), ..plan.sampling.clone() },
        max_turns: 1,
        context: usize::MAX,
        score_timeout: plan.score_timeout,
        weight: env.weight,
        evaluate_every: None,
    });
    let sampler = service.sampler(0);
    let (training, in_flight) = match options.train.weights {
        SamplerWeights::Snapshot => (service.adapter(0), None),
        SamplerWeights::InFlight => {
            let (training, sampler) = service.adapter_in_flight(0);
            (training, Some(sampler))
        }
    };
    let parts = PipelineParts {
        components: components.collect(),
        training,
        sampler: sampler.clone(),
        in_flight,
        // Logprob queries take the same time with any source.
        logprob_source: LogprobSource::Sampled,
        reference: (plan.pipeline.batch.kl_penalty > 0.0)
            .then(|| ReferenceModel { sampler: sampler.clone(), context: Arc::default() }),
        queries: Arc::new(QueryBudget::new(plan.queries)),
        shadow: None,
        pool: CpuPool::inline(),
        meters: PipelineMeters::default(),
    };
    let mut pipeline = Pipeline::start(&options, parts, ResumePoint::default())?;
    let mut recorder = SimulationRecorder::new(service, environment, log, plan);
    let mut readings = interval(Duration::from_secs_f64((bound.step() / READINGS).clamp(1e-3, 60.0)));
    readings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            biased;
            event = pipeline.next() => event,
            _ = readings.tick() => {
                recorder.read(&pipeline.mailboxes());
                continue;
            }
        };
        match event {
            Some(PipelineEvent::Failed(why)) => anyhow::bail!("after {:.1} s: {why}", recorder.elapsed()),
            Some(PipelineEvent::Ended { .. }) | None => return Ok(recorder.finish(&pipeline, bound)),
            Some(event) => recorder.take(&event),
        }
    }
}

/// Writes what becomes of a request to the log.
fn record(log: &EventLog, request: ServiceRequest<'_>, progress: RequestProgress) {
    match (request, progress) {
        (_, RequestProgress::Failed) => log.record("failed", [("what", request.name().into())]),
        (ServiceRequest::Sample(version, sample), _) => {
            let event = match progress {
                RequestProgress::Arrived => "sample",
                RequestProgress::Hung => "hung",
                RequestProgress::Answered(_) => "sampled",
                RequestProgress::Begun
                | RequestProgress::Failed
                | RequestProgress::NotFinite(_)
                | RequestProgress::Cancelled => return,
            };
            let seed = sample.params.seed.unwrap_or_default();
            let samples = sample.num_samples;
            log.record(
                event,
                [("version", version.into()), ("seed", seed.into()), ("samples", samples.into())],
            );
        }
        (ServiceRequest::Adapter(..), RequestProgress::Answered(seconds)) => {
            log.record(request.name(), [("seconds", seconds.into())]);
        }
        _ => {}
    }
}
