//! `minds-actors simulate`: plays a config's line in virtual time and says how close to its bound it runs.

use super::say;
use crate::cli;
use crate::config::{RunPlan, Variables};
use crate::exit::{Exit, Fault, OrExit};
use crate::simulate::{self, Log, Outcome};
use anyhow::Context as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Runs the command.
///
/// # Errors
/// The config is wrong (2), or the run failed or the events cannot be written (1).
pub fn run(command: &cli::Simulate) -> Result<(), Fault> {
    let config = cli::Run::of(command.config.clone(), command.set.clone(), command.seed);
    let mut plan = RunPlan::load(&config, &Variables::of_process()).or_exit(Exit::Config)?;
    if let Some(steps) = command.steps {
        plan.simulate.steps = steps.get();
    }
    let events = command.events.as_ref().map(|path| {
        let file = File::create(path).with_context(|| format!("failed to write {}", path.display()));
        file.or_exit(Exit::Failed).map(|file| Shared(Arc::new(Mutex::new(BufWriter::new(file)))))
    });
    let events = events.transpose()?;
    let outcome = system().block_on(async {
        let to = events.clone().map(|events| Box::new(events) as Box<dyn Write + Send>);
        simulate::play(&plan, Log::new(to)).await
    });
    if let (Some(mut events), Some(path)) = (events, &command.events) {
        let written = events.flush().with_context(|| format!("failed to write {}", path.display()));
        written.or_exit(Exit::Failed)?;
    }
    let outcome = outcome.context("the simulated run failed").or_exit(Exit::Failed)?;
    if command.json {
        say!("{}", outcome.to_json());
    } else {
        show(&plan, &outcome);
    }
    Ok(())
}

/// What actors live in, on one thread and with a clock that jumps to the next thing that happens.
fn system() -> actix::SystemRunner {
    actix::System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("the operating system refused a runtime")
    })
}

fn show(plan: &RunPlan, outcome: &Outcome) {
    let credits = crate::assemble::options(plan).credits();
    say!(
        "simulated    {} steps of {} groups of {}, {credits} credits: {:.0} s of virtual time",
        outcome.steps,
        plan.pace.groups_per_batch,
        plan.group_size,
        outcome.seconds
    );
    let number = |number: Option<f64>, digits: usize| match number {
        Some(number) => format!("{number:.digits$}"),
        None => "–".into(),
    };
    say!("step         {:.3} s, {} samples/s", outcome.step_s, number(outcome.samples_per_s, 2));
    let parts: Vec<String> =
        outcome.bound.named().iter().map(|(name, s)| format!("{name} {s:.3} s")).collect();
    say!(
        "bound        {:.3} s, set by {} ({})",
        outcome.bound.step(),
        outcome.bound.cause().unwrap_or("nothing"),
        parts.join(", ")
    );
    say!("efficiency   {} of the bound", number(outcome.efficiency(), 3));
    say!("training     {} % of the time", number(outcome.training_share.map(|share| 100.0 * share), 0));
    say!(
        "staleness    {:.2} steps on average, {} for half of the groups, {} for 99 of 100, {} at most",
        outcome.staleness.mean(),
        outcome.staleness.percentile(0.5),
        outcome.staleness.percentile(0.99),
        outcome.staleness.percentile(1.0)
    );
    say!(
        "stragglers   hold the trainer up for {} % of the time",
        number(outcome.held_share.map(|share| 100.0 * share), 1)
    );
    for lane in &outcome.lanes {
        say!(
            "lane         {:<9} {:.1} on average, {} at most, of {}",
            lane.name,
            lane.mean,
            lane.most,
            lane.capacity
        );
    }
    let groups = &outcome.groups;
    say!(
        "groups       {} opened, {} trained, {} filtered, {} dropped, {} failed",
        groups.opened,
        groups.trained,
        groups.filtered,
        groups.dropped,
        groups.failed
    );
    let faults = &outcome.faults;
    say!(
        "faults       {} requests failed, {} were never answered, {} samples without a number, {} rewards missing",
        faults.failed,
        faults.hung,
        faults.not_finite,
        faults.missing
    );
    if outcome.efficiency().is_none() {
        say!(
            "note         the steps took no time, so nothing can be told per second: give `[simulate]` times that \
             are not 0"
        );
    }
    for warning in &plan.warnings {
        say!("note         {warning}");
    }
}

/// A file that is flushed by its owner when its writer has gone.
#[derive(Clone)]
struct Shared(Arc<Mutex<BufWriter<File>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}
