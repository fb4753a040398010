//! `minds-actors run`: trains from a config, or goes on with an unfinished run.

use super::signals::{Asked, Signals};
use super::{eval, progress, resume, say};
use crate::assemble::{self, Ready};
use crate::cli;
use crate::config::RunPlan;
use crate::config::plan::ServicePlan;
use crate::exit::{Exit, Fault, OrExit};
use crate::run_folder::RunFolder;
use anyhow::{Context as _, anyhow};
use minds_core::backend::Service;
use minds_core::reward::Metrics;
use minds_stages::activity::Shares;
use minds_stages::line::{Event, Line};
use minds_tinker::types::FinishReason;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// After this long without a step, the log says who is busy with what.
const SILENCE: Duration = Duration::from_secs(120);

/// The same while the run stops.
const STOPPING: Duration = Duration::from_secs(30);

/// Longest that a run may take to stop.
const LONGEST_STOP: Duration = Duration::from_secs(10 * 60);

/// Longest that the end of a run waits for a measurement under way, so that nothing is left on the service.
const GOODBYE: Duration = Duration::from_secs(15);

/// Steps that are compared at both ends.
const WINDOW: usize = 10;

/// Steps after which a run is told that its reward has not moved.
const STANDSTILL: usize = 50;

/// Runs the command.
///
/// # Errors
/// See [`Exit`].
pub fn run(command: &cli::Run) -> Result<(), Fault> {
    let plan = RunPlan::load(command, &|key| std::env::var(key).ok()).or_exit(Exit::Config)?;
    if plan.sampling.temperature == 0.0 {
        let why = "without chance there is nothing to learn from; `eval` takes it";
        return Err(anyhow!("{}: `trainer.args.temperature` is 0: {why}", plan.origin)).or_exit(Exit::Config);
    }
    let mut folder = resume::open(&plan, &command.going)?;
    if is_done(&plan, &folder) {
        return Ok(());
    }
    let ready = assemble::service(&plan, Some(folder.weights()), &progress::bars())?;
    if let Err(fault) = assemble::check_fit(&plan, &ready) {
        ready.close(FinishReason::Errored);
        return Err(fault);
    }
    let components = assemble::components(&plan, &ready)?;
    let result = super::system().block_on(async {
        let place = folder.path().display().to_string();
        let setting_up = || format!("failed to set up the run in {place}");
        // Before anything is made on the service: weights that are not there end the run.
        let judge =
            assemble::judge(&plan, &ready).await.with_context(setting_up).or_exit(Exit::Unavailable)?;
        let reference = assemble::reference(&plan, &ready).await;
        let reference = reference.with_context(setting_up).or_exit(Exit::Unavailable)?;
        let training = resume::adapter(&plan, &ready, &mut folder).await;
        let training = training.with_context(setting_up).or_exit(Exit::Unavailable)?;
        if let Some(last) = folder.last() {
            assemble::recall(&components, &last.memories)?;
        }
        banner(&plan, &ready, &folder);
        let state = folder.last().map(|last| last.state_path.clone());
        let parts = assemble::parts(&plan, &ready, components, judge, reference, training, state.as_deref())
            .await
            .with_context(setting_up)
            .or_exit(Exit::Unavailable)?;
        let mut line = Line::start(&assemble::options(&plan), parts, folder.start()).or_exit(Exit::Config)?;
        let states =
            States { service: ready.service.clone(), keep: plan.keep_states, leaving: JoinSet::new() };
        let result = follow(&mut line, &mut folder, states, plan.deadline).await;
        if tokio::time::timeout(GOODBYE, line.close()).await.is_err() {
            tracing::debug!("what the run kept for itself on the service was not given up in time");
        }
        result
    });
    ready.close(match &result {
        Ok(()) => FinishReason::Success,
        Err(fault) if fault.exit == Exit::Interrupted => FinishReason::Interrupted,
        Err(_) => FinishReason::Errored,
    });
    result
}

/// Says so if no step is left.
fn is_done(plan: &RunPlan, folder: &RunFolder) -> bool {
    let step = folder.last().map_or(0, |last| last.step);
    let done = step >= plan.max_steps;
    if done {
        say!("{}: all {step} steps are done", folder.path().display());
    }
    done
}

fn banner(plan: &RunPlan, ready: &Ready, folder: &RunFolder) {
    let service = match &plan.service {
        ServicePlan::Embedded(engine) => format!("embedded engine, {} threads", engine.threads),
        ServicePlan::Remote(remote) => remote.base_url.clone(),
    };
    let envs: Vec<String> = plan.envs.iter().map(|e| format!("{} ({})", e.name, e.weight)).collect();
    say!("service      {service}");
    say!(
        "model        {}, renderer {}, LoRA rank {}",
        ready.info.base_model,
        ready.renderer.name(),
        plan.lora.rank
    );
    say!("environments {}", envs.join(", "));
    say!(
        "batch        {} groups of {}, up to {} steps off policy, {} credits",
        plan.pace.groups_per_batch,
        plan.group_size,
        plan.pace.max_steps_off_policy,
        assemble::options(plan).credits()
    );
    say!("run folder   {}", folder.path().display());
    for warning in plan.warnings.iter().chain(&ready.warnings) {
        say!("note         {warning}");
    }
    match folder.last() {
        Some(last) => say!("goes on      after step {}, from {}", last.step, last.name),
        None if folder.past_rows() > 0 => say!(
            "starts over  {} steps; no state was saved, {} steps without one moved to metrics.past_000000.json",
            plan.max_steps,
            folder.past_rows()
        ),
        None => say!("starts       {} steps", plan.max_steps),
    }
}

/// The states that a run has saved.
struct States {
    service: Arc<dyn Service>,
    /// How many of them are kept.
    keep: Option<NonZeroUsize>,
    /// Deletions under way.
    leaving: JoinSet<()>,
}

impl States {
    /// Deletes the oldest. One that cannot be deleted costs room and nothing else.
    fn prune(&mut self, folder: &mut RunFolder) -> anyhow::Result<()> {
        let Some(keep) = self.keep else { return Ok(()) };
        for old in folder.let_go(keep)? {
            let service = self.service.clone();
            self.leaving.spawn(async move {
                for path in std::iter::once(old.state_path).chain(old.sampler_path) {
                    if let Err(error) = service.forget(&path).await {
                        tracing::warn!(path, %error, "an old state could not be deleted");
                    }
                }
            });
        }
        Ok(())
    }
}

/// Follows the line to its end.
async fn follow(
    line: &mut Line,
    folder: &mut RunFolder,
    mut states: States,
    limit: Option<Duration>,
) -> Result<(), Fault> {
    let mut signals = Signals::listen().or_exit(Exit::Failed)?;
    let mut stopping: Option<Instant> = None;
    let deadline = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(deadline);
    let (begun, mut last) = (Instant::now(), line.activity().shares());
    let mut totals = Totals::default();
    loop {
        tokio::select! {
            event = line.next() => match event {
                Some(Event::Step(mut step)) => {
                    let shares = line.activity().shares();
                    totals.add(&mut step.metrics, &shares.since(&last));
                    last = shares;
                    folder.record(&step).or_exit(Exit::Failed)?;
                    say!("{}", step_line(step.step, &step.metrics));
                    if totals.stands_still() {
                        say!(
                            "note         the reward of the last {WINDOW} steps is that of the first {WINDOW}, within its \
                             noise: look at `env/all/by_group/frac_mixed` in metrics.json, which says how many groups \
                             teach anything, and at `trainer.learning_rate`"
                        );
                    }
                }
                Some(Event::Saved(saved)) => {
                    folder.keep(&saved).or_exit(Exit::Failed)?;
                    say!("saved        step {} as {}", saved.step, saved.state_path);
                    states.prune(folder).or_exit(Exit::Failed)?;
                }
                Some(Event::Poisoned(poison)) => folder.quarantine(&poison).or_exit(Exit::Failed)?,
                Some(Event::Evaluated(evaluation)) => {
                    folder.measured(&evaluation).or_exit(Exit::Failed)?;
                    eval::show(&evaluation);
                }
                Some(Event::Ended { step }) => {
                    if tokio::time::timeout(GOODBYE, states.leaving.join_all()).await.is_err() {
                        tracing::warn!("old states were not deleted in time");
                    }
                    say!("{}", totals.summary(step, begun.elapsed(), &line.activity().shares()));
                    let counts = line.ledger().counts();
                    say!(
                        "groups       {} opened, {} trained, {} filtered, {} failed, {} in flight at the end",
                        counts.opened, counts.trained, counts.filtered, counts.failed, counts.in_flight()
                    );
                    return Ok(());
                }
                Some(Event::Failed(why)) => return Err(anyhow!("the run failed: {why}")).or_exit(Exit::Failed),
                None => return Err(anyhow!("the line ended without a word")).or_exit(Exit::Failed),
            },
            asked = signals.next() => match (asked, stopping) {
                (Asked::Report, _) => report(line, "asked for"),
                (Asked::Stop, Some(_)) => {
                    return Err(anyhow!("interrupted a second time, left without saving")).or_exit(Exit::Interrupted);
                }
                (Asked::Stop, None) => {
                    stopping = Some(Instant::now());
                    say!("stopping     after the step under way; once more leaves at once");
                    line.stop();
                }
            },
            () = &mut deadline, if stopping.is_none() => {
                stopping = Some(Instant::now());
                say!("stopping     after the step under way, for the deadline is reached");
                line.stop();
            }
            () = tokio::time::sleep(if stopping.is_some() { STOPPING } else { SILENCE }) => {
                if stopping.is_some_and(|since| since.elapsed() > LONGEST_STOP) {
                    let minutes = LONGEST_STOP.as_secs() / 60;
                    return Err(anyhow!(
                        "the step under way has not ended {minutes} min after the order to stop: left; the same command \
                         goes on from the last saved state"
                    ))
                    .or_exit(Exit::Failed);
                }
                report(line, if stopping.is_some() { "still stopping" } else { "no step for a while" });
            }
        }
    }
}

/// Who is busy with what, and what waits where.
fn report(line: &Line, why: &'static str) {
    let counts = line.ledger().counts();
    tracing::warn!(in_flight = counts.in_flight(), trained = counts.trained, failed = counts.failed, "{why}");
    for (stage, now) in line.board().read() {
        tracing::warn!(stage, busy = now.busy, done = now.done, failed = now.failed, "{why}");
    }
    for lane in line.lanes() {
        tracing::warn!(lane = lane.name, depth = lane.depth, capacity = lane.capacity, "{why}");
    }
}

fn step_line(step: u64, metrics: &Metrics) -> String {
    let get = |key: &str| metrics.get(key).copied().unwrap_or(f64::NAN);
    format!(
        "step {step:<7} reward {:<7.3} kl {:<9.2e} entropy {:<6.3} stale {:<4.1} sampled {:<5} train {:.2} s, step {:.2} s, overlap {:.0} %",
        get("env/all/reward/total"),
        metrics.get("optim/kl_sample_train_v2").copied().unwrap_or(0.0),
        get("optim/entropy"),
        get("async/staleness_mean"),
        get("tokens/sampled"),
        get("time/train"),
        get("time/total"),
        100.0 * get("async/overlap_share"),
    )
}

/// Sums over the run.
#[derive(Default)]
struct Totals {
    sampled: f64,
    trained: f64,
    rewards: Vec<f64>,
}

impl Totals {
    /// Adds the step to the sums, and what only the outside knows to the step.
    fn add(&mut self, metrics: &mut Metrics, stretch: &Shares) {
        let get = |key: &str| metrics.get(key).copied().unwrap_or(0.0);
        self.sampled += get("tokens/sampled");
        self.trained += get("tokens/trained");
        self.rewards.push(get("env/all/reward/total"));
        metrics.insert("time/total".into(), stretch.wall);
        metrics.insert("time/sampling_busy".into(), stretch.sampling);
        metrics.insert("time/scoring_busy".into(), stretch.scoring);
        metrics.insert("time/training_busy".into(), stretch.training);
        metrics.insert("async/overlap_share".into(), stretch.overlap_share());
        if metrics.contains_key("shadow/measured") {
            metrics.insert("shadow/busy_s".into(), stretch.shadow);
            metrics.insert("shadow/service_share".into(), stretch.shadow_share());
        }
    }

    /// Whether, told once, the reward has not moved by more than its noise since the run began.
    fn stands_still(&self) -> bool {
        if self.rewards.len() != STANDSTILL {
            return false;
        }
        let moments = |rewards: &[f64]| {
            let mean = rewards.iter().sum::<f64>() / WINDOW as f64;
            (mean, rewards.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (WINDOW as f64 - 1.0))
        };
        let (first, spread) = moments(&self.rewards[..WINDOW]);
        let (last, last_spread) = moments(&self.rewards[STANDSTILL - WINDOW..]);
        let error = ((spread + last_spread) / WINDOW as f64).sqrt();
        // A reward that is constant is either perfect or hopeless; both are worth a look.
        (last - first).abs() <= 2.0 * error
    }

    fn summary(&self, step: u64, took: Duration, shares: &Shares) -> String {
        let seconds = took.as_secs_f64();
        let mean = |rewards: &[f64]| rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
        let rewards = match self.rewards.len() {
            all if all < 2 * WINDOW => format!("{:.3} over all steps", mean(&self.rewards)),
            all => format!(
                "{:.3} over the first {WINDOW} steps, {:.3} over the last {WINDOW}",
                mean(&self.rewards[..WINDOW]),
                mean(&self.rewards[all - WINDOW..])
            ),
        };
        format!(
            "done         {step} steps; {:.0} s, {:.1} tokens/s sampled, {:.1} tokens/s trained\n\
             busy         sampling {:.0} %, scoring {:.0} %, training {:.0} % of the time; \
             {:.0} % of the training time overlapped with sampling or scoring\n\
             reward       {rewards}",
            seconds,
            self.sampled / seconds,
            self.trained / seconds,
            100.0 * shares.sampling / shares.wall,
            100.0 * shares.scoring / shares.wall,
            100.0 * shares.training / shares.wall,
            100.0 * shares.overlap_share(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // H20: a published run had not learnt anything, and nothing said so.
    #[test]
    fn h20_a_reward_that_does_not_move_is_told_once() {
        let told = |reward: fn(usize) -> f64| -> Vec<usize> {
            let mut totals = Totals::default();
            (1..=100)
                .filter(|step| {
                    totals.rewards.push(reward(*step));
                    totals.stands_still()
                })
                .collect()
        };
        // Noise of ±0.1 about a level, and about a line.
        assert_eq!(told(|n| if n % 2 == 0 { 0.4 } else { 0.6 }), [50]);
        assert_eq!(told(|n| 0.01 * n as f64 + if n % 2 == 0 { 0.4 } else { 0.6 }), [0; 0]);
        assert_eq!(told(|_| 0.5), [50]);
    }
}
