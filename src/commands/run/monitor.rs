//! Follows a pipeline to its end: records and shows its events, and stops it on request.

use super::retention::CheckpointRetention;
use super::spending::Spending;
use super::summary::{RunSummary, WINDOW, step_line};
use crate::commands::signals::{ONE_ORDER, SignalRequest, Signals};
use crate::commands::{eval, print_line};
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::run_folder::RunFolder;
use crate::terminal::{self, ProgressBars};
use anyhow::{Context as _, anyhow};
use futures::FutureExt as _;
use minds_core::record::{ALL_ENVIRONMENTS, EnvironmentRecord, StepRecord, environment_key};
use minds_observe::dashboard::{EventLevel, RunState, RunView, trainer_activity};
use minds_stages::ledger::one_line;
use minds_stages::messages::CommittedStep;
use minds_stages::pipeline::{Pipeline, PipelineEvent};
use minds_stages::remote::{BrokerError, Dispatcher};
use minds_stages::telemetry::sample_waits::LateSampleNotice;
use minds_stages::trainer::SavedCheckpoint;
use minds_stages::usage::usage_meter::RequestStop;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Time without a step after which the log reports what each stage is doing.
const SILENCE: Duration = Duration::from_secs(120);

/// The same while the run stops.
const STOPPING: Duration = Duration::from_secs(30);

/// Longest that a run may take to stop.
const LONGEST_STOP: Duration = Duration::from_secs(10 * 60);

/// Longest wait at the end of a run for requests in flight, so that nothing is left on the service.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// Follows a pipeline until it ends.
pub(super) struct RunMonitor<'a> {
    pub(super) pipeline: &'a mut Pipeline,
    pub(super) folder: &'a mut RunFolder,
    pub(super) retention: CheckpointRetention,
    pub(super) view: Arc<RunView>,
    pub(super) bars: Option<ProgressBars>,
    pub(super) summary: RunSummary,
    spending: Spending,
    /// Why the service is sent no further request, if that stops the run.
    request_stop: Option<RequestStop>,
    /// When late sample requests are reported.
    late: LateSampleNotice,
    begun: Instant,
    stopping: Option<Instant>,
}

impl<'a> RunMonitor<'a> {
    pub(super) fn new(
        pipeline: &'a mut Pipeline,
        folder: &'a mut RunFolder,
        retention: CheckpointRetention,
        view: Arc<RunView>,
        bars: Option<ProgressBars>,
        summary: RunSummary,
        spending: Spending,
    ) -> Self {
        let begun = Instant::now();
        Self {
            pipeline,
            folder,
            retention,
            view,
            bars,
            summary,
            spending,
            request_stop: None,
            late: LateSampleNotice::default(),
            begun,
            stopping: None,
        }
    }

    /// Runs until the pipeline has ended.
    pub(super) async fn follow(mut self, limit: Option<Duration>) -> Result<(), CommandError> {
        let result = self.run_until_end(limit).await;
        self.bars = None;
        // Also where it came with the last request of the run.
        let denied = self.spending.meter.stopped().now_or_never();
        let denied = denied.filter(|stop| matches!(stop, RequestStop::Denied(_)));
        // What is in flight is billed, so its responses are counted.
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, self.spending.meter.finish()).await.is_err() {
            tracing::debug!("requests in flight were not answered in time and are counted at their most");
        }
        let spent = self.spending.write(self.folder);
        let written = self.folder.finish_rollouts().await.or_exit(ProcessExit::Failed);
        match result.and_then(|step| spent.and(written).map(|()| step)) {
            Ok(step) => {
                self.view.finish(step);
                self.spending.print();
                let at_cap = self.request_stop.take().filter(|_| step < self.view.run_info.steps);
                let stop = denied.or(at_cap);
                let ended = stop.map_or(Ok(()), |stop| self.spending.stopped(stop, self.folder, step));
                self.print_summary(step).await;
                ended
            }
            Err(fault) => {
                self.view.set_state(RunState::Failed, EventLevel::Error, fault.to_string());
                Err(fault)
            }
        }
    }

    /// Logs what each stage is doing, and which messages are waiting.
    fn report(&self, why: &'static str) {
        let pipeline = &*self.pipeline;
        let counts = pipeline.ledger().counts();
        let trainer = trainer_activity(pipeline.observer().activity.now());
        tracing::warn!(
            in_flight = counts.in_flight(),
            trained = counts.trained,
            failed = counts.failed,
            trainer,
            "{why}"
        );
        for (stage, now) in pipeline.observer().board.read() {
            tracing::warn!(stage, busy = now.busy, done = now.done, failed = now.failed, "{why}");
        }
        for mailbox in pipeline.mailboxes() {
            tracing::warn!(
                mailbox = mailbox.name,
                depth = mailbox.depth,
                capacity = mailbox.capacity,
                "{why}"
            );
        }
        if let Some(dispatcher) = &self.view.workers {
            let jobs = dispatcher.counts();
            tracing::warn!(
                connected = dispatcher.broker().state().is_connected(),
                queued = jobs.queued,
                running = jobs.running,
                done = jobs.done,
                "{why}: jobs"
            );
            for worker in dispatcher.workers() {
                let report = worker.report;
                tracing::warn!(
                    worker = report.worker,
                    running = report.running,
                    done = worker.results,
                    "{why}"
                );
            }
        }
    }

    /// Reports sample requests that wait much longer than others did: the service may never answer them.
    fn report_late_samples(&mut self) {
        if let Some(late) = self.late.take(self.pipeline.observer().meters.service.waits.late()) {
            tracing::warn!("{late}");
            self.view.add_event(EventLevel::Warn, late.to_string());
        }
    }

    /// Runs until the pipeline has ended; returns the number of completed steps.
    async fn run_until_end(&mut self, limit: Option<Duration>) -> Result<u64, CommandError> {
        let mut signals = Signals::listen().or_exit(ProcessExit::Failed)?;
        let deadline = async {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(deadline);
        let meter = self.spending.meter.clone();
        let request_stop = async move { meter.stopped().await };
        tokio::pin!(request_stop);
        let mut ticks = interval(Duration::from_millis(500));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_event = Instant::now();
        loop {
            let silence = if self.stopping.is_some() { STOPPING } else { SILENCE };
            tokio::select! {
                event = self.pipeline.next() => {
                    last_event = Instant::now();
                    if let Some(step) = self.handle_event(event).await? {
                        return Ok(step);
                    }
                }
                asked = signals.next() => match asked {
                    SignalRequest::Report => self.report("what each stage is doing"),
                    // `timeout` signals the process and its group, so one request may arrive twice.
                    SignalRequest::Stop if self.stopping.is_some_and(|since| since.elapsed() < ONE_ORDER) => {}
                    SignalRequest::Stop if self.stopping.is_some() => {
                        return Err(anyhow!("interrupted a second time, exiting without saving")).or_exit(ProcessExit::Interrupted);
                    }
                    SignalRequest::Stop => self.stop("stopping     after the current step; a second signal exits at once"),
                },
                why = workers_failed(self.view.workers.as_ref()) => {
                    return Err(why)
                        .context("the run resumes from its last checkpoint when it is started again")
                        .or_exit(ProcessExit::Unavailable);
                }
                () = &mut deadline, if self.stopping.is_none() => {
                    self.stop("stopping     after the current step: deadline reached");
                }
                stop = request_stop.as_mut(), if self.stopping.is_none() => {
                    let why = match &stop {
                        RequestStop::Denied(error) => error.to_string(),
                        RequestStop::Cap | RequestStop::Ended => {
                            "the next requests could pass `[budget] max_usd`".into()
                        }
                    };
                    self.request_stop = Some(stop);
                    self.stop(&format!("stopping     after the current step: {why}"));
                }
                _ = ticks.tick() => {
                    self.spending.write(self.folder)?;
                    self.folder.check_rollouts().await.or_exit(ProcessExit::Failed)?;
                    self.report_late_samples();
                    self.show_progress();
                }
                () = tokio::time::sleep_until(last_event + silence) => {
                    last_event = Instant::now();
                    if self.stopping.is_some_and(|since| since.elapsed() > LONGEST_STOP) {
                        let minutes = LONGEST_STOP.as_secs() / 60;
                        return Err(anyhow!(
                            "the current step has not ended {minutes} min after the stop request: exiting; the same \
                             command resumes from the last checkpoint"
                        ))
                        .or_exit(ProcessExit::Failed);
                    }
                    self.report(if self.stopping.is_some() { "still stopping" } else { "no step for a while" });
                }
            }
        }
    }

    /// Records and shows an event of the pipeline; at its end, returns the number of completed steps.
    async fn handle_event(&mut self, event: Option<PipelineEvent>) -> Result<Option<u64>, CommandError> {
        match event {
            Some(PipelineEvent::Step(step)) => self.step(*step).await?,
            Some(PipelineEvent::CheckpointSaved(saved)) => self.saved(&saved).await?,
            Some(PipelineEvent::Quarantined(poison)) => {
                self.folder.quarantine(&poison).or_exit(ProcessExit::Failed)?;
                let cause = poison.cause.to_string();
                tracing::warn!(
                    "{} {} has no reward: {}",
                    poison.environment,
                    poison.rollout,
                    one_line(&cause)
                );
            }
            Some(PipelineEvent::Evaluated(evaluation)) => {
                self.folder.add_evaluation(&evaluation).or_exit(ProcessExit::Failed)?;
                self.view.add_evaluation(&evaluation);
                eval::show(&evaluation);
            }
            Some(PipelineEvent::Ended { step }) => return Ok(Some(step)),
            Some(PipelineEvent::Failed(why)) if why.is_service_failure() => {
                let failed = format!("the run failed, and {}", self.resume_advice());
                return Err(anyhow::Error::new(why).context(failed)).or_exit(ProcessExit::Unavailable);
            }
            Some(PipelineEvent::Failed(why)) => {
                return Err(anyhow::Error::new(why).context("the run failed")).or_exit(ProcessExit::Failed);
            }
            None => {
                return Err(anyhow!("the pipeline stopped without reporting an error"))
                    .or_exit(ProcessExit::Failed);
            }
        }
        Ok(None)
    }

    /// What the same command does after the service has failed.
    fn resume_advice(&self) -> String {
        let folder = self.folder.path().display();
        match self.folder.last() {
            Some(last) => {
                format!("the same command with --output-dir {folder} resumes it after step {}", last.step)
            }
            None => "the same command starts it again: there is no checkpoint".into(),
        }
    }

    async fn step(&mut self, done: CommittedStep) -> Result<(), CommandError> {
        self.summary.add(&done);
        self.spending.write(self.folder)?;
        self.folder.add_step(&done).await.or_exit(ProcessExit::Failed)?;
        if let Some(bars) = &self.bars {
            bars.step(done.record.step);
        }
        show(&done.record);
        if self.summary.is_reward_flat() {
            let note = format!(
                "the reward of the last {WINDOW} steps is that of the first {WINDOW}, within its noise: look at \
                 `{}` in metrics.json, which says how many groups teach anything, and at \
                 `trainer.learning_rate`",
                environment_key(ALL_ENVIRONMENTS, EnvironmentRecord::KEYS.mixed_share)
            );
            print_line!("note         {note}");
            self.view.add_event(EventLevel::Warn, note);
        }
        self.view.add_step(done);
        Ok(())
    }

    async fn saved(&mut self, saved: &SavedCheckpoint) -> Result<(), CommandError> {
        let SavedCheckpoint { step, state_path, .. } = saved;
        self.folder.add_checkpoint(saved).await.or_exit(ProcessExit::Failed)?;
        // Before the line, so that the dashboard has the checkpoint once the line is read.
        if let Some(kept) = self.folder.last() {
            self.view.add_checkpoint(kept.summary());
        }
        self.view.add_event(EventLevel::Info, format!("saved step {step} as {state_path}"));
        print_line!("saved        step {step} as {state_path}");
        self.retention.expire_older(saved);
        let oldest = self.pipeline.ledger().oldest_version();
        self.retention.prune(self.folder, oldest).or_exit(ProcessExit::Failed)
    }

    fn stop(&mut self, why: &str) {
        self.stopping = Some(Instant::now());
        print_line!("{why}");
        self.view.set_state(RunState::Stopping, EventLevel::Info, "stopping after the current step");
        self.pipeline.stop();
    }

    /// Shows the status of the pipeline below the bar of its steps.
    fn show_progress(&self) {
        let Some(bars) = &self.bars else { return };
        let counts = self.pipeline.ledger().counts();
        let busy = |stage| self.pipeline.observer().board.stage(stage).busy;
        let seconds = self.begun.elapsed().as_secs_f64();
        bars.set_status(format!(
            "trainer {} · {} · {} of {} groups in flight · {:.0} tokens/s · sampler {} · scorer {}",
            trainer_activity(self.pipeline.observer().activity.now()),
            self.summary.progress_line(),
            counts.in_flight(),
            self.pipeline.observer().credits,
            self.pipeline.observer().meters.sampled_tokens() as f64 / seconds,
            busy("sampler"),
            busy("scorer"),
        ));
    }

    /// Prints the summary of a run that ended without an error.
    async fn print_summary(self, step: u64) {
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, self.retention.deletions.join_all()).await.is_err() {
            tracing::warn!("old checkpoints were not deleted in time");
        }
        let shares = self.pipeline.observer().activity.shares();
        print_line!(
            "{}",
            self.summary.summary(step, self.view.run_info.steps, self.begun.elapsed(), &shares)
        );
        if let Some(note) = self.summary.straggler_note(self.view.run_info.max_staleness, &shares) {
            print_line!("note         {note}");
        }
        let counts = self.pipeline.ledger().counts();
        print_line!(
            "groups       {} opened, {} trained, {} filtered, {} failed, {} in flight at the end",
            counts.opened,
            counts.trained,
            counts.filtered,
            counts.failed,
            counts.in_flight()
        );
    }
}

/// Prints a step as a line or as a log record.
fn show(record: &StepRecord) {
    if !terminal::is_logged() {
        print_line!("{}", step_line(record));
        return;
    }
    tracing::info!(
        step = record.step,
        nll = record.train_nll,
        reward = record.reward(),
        kl = record.kl_v2,
        entropy = record.entropy,
        staleness = record.staleness_mean,
        staleness_newest = record.staleness_newest,
        tokens_sampled = record.tokens_sampled,
        train_s = record.time_train,
        step_s = record.time_total,
        overlap = record.overlap_share,
        "step"
    );
}

/// Waits until jobs can no longer be handed out; forever without a broker.
async fn workers_failed(workers: Option<&Dispatcher>) -> BrokerError {
    match workers {
        Some(dispatcher) => dispatcher.failed().await,
        None => std::future::pending().await,
    }
}
