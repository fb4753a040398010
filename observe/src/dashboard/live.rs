//! Status of the pipeline once a second: mailboxes and stages, rates of the last half minute, and new warnings.

use super::view::{RunView, now};
use super::warnings;
use minds_stages::telemetry::activity::{BusyStages, BusyTimes};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Window of the rates, in readings one second apart.
const WINDOW: usize = 30;

/// Cumulative counts at one moment.
#[derive(Clone, Copy)]
struct RateSample {
    at: Instant,
    steps: u64,
    groups: u64,
    samples: u64,
    sampled: u64,
    trained: u64,
    shares: BusyTimes,
}

impl RateSample {
    fn take(view: &RunView) -> Self {
        Self {
            at: Instant::now(),
            steps: view.history().step - view.run_info.first_step,
            groups: view.pipeline.ledger.counts().settled(),
            samples: view.pipeline.board.stage("sampler").done,
            sampled: view.pipeline.meters.sampled_tokens(),
            trained: view.pipeline.meters.trained_tokens(),
            shares: view.pipeline.activity.shares(),
        }
    }
}

/// Publishes the status of the pipeline once a second until `end`, and then a last time.
pub(super) async fn publish_status(view: &RunView, end: impl Future<Output = ()>) {
    tokio::pin!(end);
    let first = RateSample::take(view);
    let mut readings = VecDeque::from([first]);
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_last = tokio::select! {
            _ = ticks.tick() => false,
            () = &mut end => true,
        };
        for (level, text) in warnings::due(is_last) {
            view.add_event(level, text);
        }
        readings.push_back(RateSample::take(view));
        if readings.len() > WINDOW + 1 {
            readings.pop_front();
        }
        let state = state(view, &first, &readings);
        view.state.send_replace(state.to_string().into());
        if is_last {
            return;
        }
    }
}

fn state(view: &RunView, first: &RateSample, readings: &VecDeque<RateSample>) -> Value {
    let (Some(then), Some(now_)) = (readings.front(), readings.back()) else { return Value::Null };
    let seconds = (now_.at - then.at).as_secs_f64();
    let rate = |of: fn(&RateSample) -> u64| {
        if seconds > 0.0 { json!((of(now_) - of(then)) as f64 / seconds) } else { Value::Null }
    };
    let busy = now_.shares.since(&then.shares);
    let share = |part: f64| if busy.wall > 0.0 { json!(part / busy.wall) } else { Value::Null };
    let counts = view.pipeline.ledger.counts();
    let stages = view.pipeline.board.read().into_iter().map(|(name, stage)| {
        json!({ "name": name, "busy": stage.busy, "done": stage.done, "failed": stage.failed })
    });
    let mailboxes = view.pipeline.mailboxes().into_iter().map(|mailbox| {
        json!({
            "name": mailbox.name, "depth": mailbox.depth, "capacity": mailbox.capacity, "sent": mailbox.sent,
            "waited_s": mailbox.waited_s, "lost": mailbox.lost,
        })
    });
    let workers = view.workers.as_ref().map(|dispatcher| {
        let jobs = dispatcher.counts();
        let workers = dispatcher.workers().into_iter().map(|worker| {
            let report = worker.report;
            json!({
                "name": report.worker, "running": report.running, "concurrency": report.concurrency,
                "done": worker.results, "job_s": worker.took.as_secs_f64() / worker.results.max(1) as f64,
                "idle": report.idle, "program": report.program, "serves": report.serves, "problems": report.problems,
            })
        });
        json!({
            "connected": dispatcher.broker().state().is_connected(),
            "queued": jobs.queued, "running": jobs.running, "done": jobs.done, "redelivered": jobs.redelivered,
            "dead": jobs.dead, "workers": workers.collect::<Vec<_>>(),
        })
    });
    let history = view.history();
    let steps_so_far = now_.steps as f64;
    let left = view.run_info.steps.saturating_sub(history.step) as f64;
    let eta = (steps_so_far > 0.0).then(|| left * (now_.at - first.at).as_secs_f64() / steps_so_far);
    json!({
        "at": now(),
        "step": history.step,
        "state": history.state,
        "counts": {
            "opened": counts.opened, "trained": counts.trained, "filtered": counts.filtered,
            "dropped": counts.dropped, "failed": counts.failed, "in_flight": counts.in_flight(),
        },
        "credits": view.pipeline.credits,
        "stages": stages.collect::<Vec<_>>(),
        "mailboxes": mailboxes.collect::<Vec<_>>(),
        "workers": workers,
        "rates": {
            "steps": rate(|r| r.steps), "groups": rate(|r| r.groups), "samples": rate(|r| r.samples),
            "tokens_sampled": rate(|r| r.sampled), "tokens_trained": rate(|r| r.trained),
        },
        "busy": {
            "sampling": share(busy.sampling), "scoring": share(busy.scoring), "training": share(busy.training),
            "shadow": share(busy.shadow), "overlap": busy.overlap_share(),
        },
        "trainer": trainer_activity(view.pipeline.activity.now()),
        "checkpoint": history.checkpoint.map(|(step, at)| json!({ "step": step, "at": at })),
        "eta_s": eta,
    })
}

/// Describes what the trainer does or waits for.
pub fn trainer_activity(now: BusyStages) -> &'static str {
    match now {
        BusyStages { training: true, .. } => "trains",
        BusyStages { sampling: true, scoring: true, .. } => "waits for sampling and scoring",
        BusyStages { sampling: true, .. } => "waits for sampling",
        BusyStages { scoring: true, .. } => "waits for scoring",
        BusyStages { exporting: true, .. } => "waits for the export",
        _ => "waits",
    }
}
