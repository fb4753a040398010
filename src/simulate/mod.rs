//! A whole run in virtual time, against a service and rewards that are scripted by `[simulate]`.
//!
//! The line is the real one with the config's sizes; only what it would wait for is played. Nothing waits in fact, so
//! hours pass in seconds. Everything is drawn from the seed: the same seed gives the same events at the same times.
//! Times are rounded up to a millisecond, the grain of the runtime's clock.

mod bound;
mod environment;
mod log;
mod outcome;
mod service;

pub use bound::Bound;
pub use log::Log;
pub use outcome::Outcome;

use crate::assemble;
use crate::config::RunPlan;
use environment::Scripted;
use minds_core::chat::{Renderer, Tokenizer};
use minds_core::ids::PolicyVersion;
use minds_core::sampling::SamplingParams;
use minds_models::ByteTokenizer;
use minds_stages::kit::CpuPool;
use minds_stages::line::{Event, Line, Parts, Start};
use minds_stages::meters::Meters;
use minds_stages::parcels::Component;
use minds_stages::queries::Queries;
use minds_stages::scorer::Judge;
use outcome::Watcher;
use service::{ScriptedService, Training};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Readings of the lanes' depths during one step at the bound.
const READINGS: f64 = 20.0;

/// Plays the plan's line. Must be called in an actix system whose clock is paused.
///
/// # Errors
/// The run failed; in which words, and when.
pub async fn play(plan: &RunPlan, log: Log) -> anyhow::Result<Outcome> {
    let mut options = assemble::options(plan);
    options.train.max_steps = plan.simulate.steps;
    let bound = Bound::of(plan);
    let service = Arc::new(ScriptedService::new(plan.simulate.clone(), plan.seed, log));
    let tokenizer: Arc<dyn Tokenizer> = Arc::new(ByteTokenizer);
    let renderer: Arc<dyn Renderer> = minds_environments::render::renderer("role_colon", tokenizer)?;
    let components = plan.envs.iter().map(|env| Component {
        name: env.name.clone(),
        environment: Arc::new(Scripted::new(env.name.clone(), service.clone())),
        renderer: renderer.clone(),
        group_size: plan.group_size,
        sampling: SamplingParams { stop: renderer.stop(), ..plan.sampling.clone() },
        max_turns: 1,
        context: usize::MAX,
        score_timeout: plan.score_timeout,
        weight: env.weight,
    });
    let whole = options.batch.groups_per_batch.get() * plan.group_size.get() as usize;
    let sampler = service.sampler(PolicyVersion(0));
    let parts = Parts {
        components: components.collect(),
        training: Arc::new(Training::start(service.clone(), whole)),
        sampler: sampler.clone(),
        // Log-probs take the same time whoever answers them.
        judge: Judge::Sampled,
        reference: (plan.pace.kl_penalty > 0.0).then(|| sampler.clone()),
        queries: Arc::new(Queries::new(plan.queries)),
        shadow: None,
        pool: CpuPool::inline(),
        meters: Meters::default(),
    };
    let mut line = Line::start(&options, parts, Start::default())?;
    let mut watcher = Watcher::new(service, plan);
    let mut readings = interval(Duration::from_secs_f64((bound.step() / READINGS).clamp(1e-3, 60.0)));
    readings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            biased;
            event = line.next() => event,
            _ = readings.tick() => {
                watcher.read(&line.lanes());
                continue;
            }
        };
        match event {
            Some(Event::Failed(why)) => anyhow::bail!("after {:.1} s: {why}", watcher.elapsed()),
            Some(Event::Ended { .. }) | None => return Ok(watcher.outcome(&line, bound)),
            Some(event) => watcher.take(&event),
        }
    }
}
