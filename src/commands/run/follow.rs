//! Follows a line to its end: keeps what it tells, shows it, and stops it when it is asked to.

use super::states::States;
use super::totals::{Totals, WINDOW, step_line};
use crate::commands::signals::{Asked, Signals};
use crate::commands::{eval, say};
use crate::dashboard::{Hub, Level, State, waits_for};
use crate::exit::{Exit, Fault, OrExit};
use crate::run_folder::RunFolder;
use crate::terminal::{self, Bars};
use anyhow::anyhow;
use minds_core::reward::Metrics;
use minds_stages::activity::Shares;
use minds_stages::ledger::one_line;
use minds_stages::line::{Event, Line};
use minds_stages::names;
use minds_stages::parcels::StepDone;
use minds_stages::trainer::Saved;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// After this long without a step, the log says who is busy with what.
const SILENCE: Duration = Duration::from_secs(120);

/// The same while the run stops.
const STOPPING: Duration = Duration::from_secs(30);

/// Longest that a run may take to stop.
const LONGEST_STOP: Duration = Duration::from_secs(10 * 60);

/// Longest that the end of a run waits for something under way, so that nothing is left on the service.
pub(super) const GOODBYE: Duration = Duration::from_secs(15);

/// Signals that follow a first one within this time are the same order.
const ONE_ORDER: Duration = Duration::from_secs(1);

/// What follows a line.
pub(super) struct Follower<'a> {
    pub(super) line: &'a mut Line,
    pub(super) folder: &'a mut RunFolder,
    pub(super) states: States,
    pub(super) hub: Arc<Hub>,
    pub(super) bars: Option<Bars>,
    pub(super) totals: Totals,
    begun: Instant,
    last: Shares,
    stopping: Option<Instant>,
}

impl<'a> Follower<'a> {
    pub(super) fn new(
        line: &'a mut Line,
        folder: &'a mut RunFolder,
        states: States,
        hub: Arc<Hub>,
        bars: Option<Bars>,
        totals: Totals,
    ) -> Self {
        let (begun, last) = (Instant::now(), line.activity().shares());
        Self { line, folder, states, hub, bars, totals, begun, last, stopping: None }
    }

    /// Until the line has ended.
    pub(super) async fn follow(mut self, limit: Option<Duration>) -> Result<(), Fault> {
        let result = self.watch(limit).await;
        self.bars = None;
        match result {
            Ok(step) => {
                self.hub.ended(step);
                self.goodbye(step).await;
                Ok(())
            }
            Err(fault) => {
                self.hub.turned(State::Failed);
                self.hub.happened(Level::Error, fault.to_string());
                Err(fault)
            }
        }
    }

    /// Until the line has ended; the steps done.
    async fn watch(&mut self, limit: Option<Duration>) -> Result<u64, Fault> {
        let mut signals = Signals::listen().or_exit(Exit::Failed)?;
        let deadline = async {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(deadline);
        let mut glances = interval(Duration::from_millis(500));
        glances.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            let silence = if self.stopping.is_some() { STOPPING } else { SILENCE };
            tokio::select! {
                event = self.line.next() => {
                    heard = Instant::now();
                    if let Some(step) = self.take(event)? {
                        return Ok(step);
                    }
                }
                asked = signals.next() => match asked {
                    Asked::Report => report(self.line, "what waits for what"),
                    // `timeout` sends its signal to the process and to its group, so one order may come twice.
                    Asked::Stop if self.stopping.is_some_and(|since| since.elapsed() < ONE_ORDER) => {}
                    Asked::Stop if self.stopping.is_some() => {
                        return Err(anyhow!("interrupted a second time, left without saving")).or_exit(Exit::Interrupted);
                    }
                    Asked::Stop => self.stop("stopping     after the step under way; once more leaves at once"),
                },
                () = &mut deadline, if self.stopping.is_none() => {
                    self.stop("stopping     after the step under way, for the deadline is reached");
                }
                _ = glances.tick(), if self.bars.is_some() => self.glance(),
                () = tokio::time::sleep_until(heard + silence) => {
                    heard = Instant::now();
                    if self.stopping.is_some_and(|since| since.elapsed() > LONGEST_STOP) {
                        let minutes = LONGEST_STOP.as_secs() / 60;
                        return Err(anyhow!(
                            "the step under way has not ended {minutes} min after the order to stop: left; the same \
                             command goes on from the last saved state"
                        ))
                        .or_exit(Exit::Failed);
                    }
                    report(self.line, if self.stopping.is_some() { "still stopping" } else { "no step for a while" });
                }
            }
        }
    }

    /// Keeps and shows what the line tells; at its end, the steps done.
    fn take(&mut self, event: Option<Event>) -> Result<Option<u64>, Fault> {
        match event {
            Some(Event::Step(step)) => self.step(step)?,
            Some(Event::Saved(saved)) => self.saved(&saved)?,
            Some(Event::Poisoned(poison)) => {
                self.folder.quarantine(&poison).or_exit(Exit::Failed)?;
                let cause = poison.cause.to_string();
                tracing::warn!(
                    "{} {} has no reward: {}",
                    poison.environment,
                    poison.episode,
                    one_line(&cause)
                );
            }
            Some(Event::Evaluated(evaluation)) => {
                self.folder.measured(&evaluation).or_exit(Exit::Failed)?;
                self.hub.measured(&evaluation);
                eval::show(&evaluation);
            }
            Some(Event::Ended { step }) => return Ok(Some(step)),
            Some(Event::Failed(why)) => {
                return Err(anyhow!("the run failed: {why}")).or_exit(Exit::Failed);
            }
            None => return Err(anyhow!("the line ended without a word")).or_exit(Exit::Failed),
        }
        Ok(None)
    }

    fn step(&mut self, mut done: StepDone) -> Result<(), Fault> {
        let shares = self.line.activity().shares();
        self.totals.add(&mut done, &shares.since(&self.last));
        self.last = shares;
        self.folder.record(&done).or_exit(Exit::Failed)?;
        if let Some(bars) = &self.bars {
            bars.step(done.step);
        }
        show(done.step, &done.metrics);
        if self.totals.stands_still() {
            let note = format!(
                "the reward of the last {WINDOW} steps is that of the first {WINDOW}, within its noise: look at \
                 `env/all/by_group/frac_mixed` in metrics.json, which says how many groups teach anything, and at \
                 `trainer.learning_rate`"
            );
            say!("note         {note}");
            self.hub.happened(Level::Warn, note);
        }
        self.hub.step(done);
        Ok(())
    }

    fn saved(&mut self, saved: &Saved) -> Result<(), Fault> {
        let Saved { step, state_path, .. } = saved;
        self.folder.keep(saved).or_exit(Exit::Failed)?;
        say!("saved        step {step} as {state_path}");
        if let Some(kept) = self.folder.last() {
            self.hub.saved(kept);
        }
        self.hub.happened(Level::Info, format!("saved step {step} as {state_path}"));
        self.states.date(saved);
        let oldest = self.line.ledger().oldest_version();
        self.states.prune(self.folder, oldest).or_exit(Exit::Failed)
    }

    fn stop(&mut self, why: &str) {
        self.stopping = Some(Instant::now());
        say!("{why}");
        self.turn(State::Stopping, "stopping after the step under way");
        self.line.stop();
    }

    fn turn(&self, state: State, text: &str) {
        self.hub.turned(state);
        self.hub.happened(Level::Info, text);
    }

    /// Shows how the line is doing, below the bar of its steps.
    fn glance(&self) {
        let Some(bars) = &self.bars else { return };
        let counts = self.line.ledger().counts();
        let busy = |stage| self.line.board().stage(stage).busy;
        let seconds = self.begun.elapsed().as_secs_f64();
        bars.tell(format!(
            "trainer {} · {} · {} of {} groups in flight · {:.0} tokens/s · sampler {} · scorer {}",
            waits_for(self.line.activity().now()),
            self.totals.glance(),
            counts.in_flight(),
            self.line.observer().credits,
            self.hub.meters().sampled_tokens() as f64 / seconds,
            busy("sampler"),
            busy("scorer"),
        ));
    }

    /// The last words of a run that ended as it should.
    async fn goodbye(self, step: u64) {
        if tokio::time::timeout(GOODBYE, self.states.leaving.join_all()).await.is_err() {
            tracing::warn!("old states were not deleted in time");
        }
        let shares = self.line.activity().shares();
        say!("{}", self.totals.summary(step, self.begun.elapsed(), &shares));
        if let Some(note) = self.totals.stragglers(self.hub.facts.max_staleness, &shares) {
            say!("note         {note}");
        }
        let counts = self.line.ledger().counts();
        say!(
            "groups       {} opened, {} trained, {} filtered, {} failed, {} in flight at the end",
            counts.opened,
            counts.trained,
            counts.filtered,
            counts.failed,
            counts.in_flight()
        );
    }
}

/// A step, as a line or as a record of the log.
fn show(step: u64, metrics: &Metrics) {
    if !terminal::is_logged() {
        say!("{}", step_line(step, metrics));
        return;
    }
    let get = |key: &str| metrics.get(key).copied();
    tracing::info!(
        step,
        reward = get("env/all/reward/total"),
        kl = get(names::KL_V2),
        entropy = get(names::ENTROPY),
        staleness = get(names::STALENESS_MEAN),
        tokens_sampled = get(names::TOKENS_SAMPLED),
        train_s = get(names::TIME_TRAIN),
        step_s = get(names::TIME_TOTAL),
        overlap = get(names::OVERLAP_SHARE),
        "step"
    );
}

/// Who is busy with what, and what waits where.
fn report(line: &Line, why: &'static str) {
    let counts = line.ledger().counts();
    let trainer = waits_for(line.activity().now());
    tracing::warn!(
        in_flight = counts.in_flight(),
        trained = counts.trained,
        failed = counts.failed,
        trainer,
        "{why}"
    );
    for (stage, now) in line.board().read() {
        tracing::warn!(stage, busy = now.busy, done = now.done, failed = now.failed, "{why}");
    }
    for lane in line.lanes() {
        tracing::warn!(lane = lane.name, depth = lane.depth, capacity = lane.capacity, "{why}");
    }
}
