//! How the line is doing, once a second: what is where, the rates of the last half minute, and what was warned of.

use super::hub::{Hub, now};
use super::troubles;
use minds_stages::activity::{Now, Shares};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The time that rates are taken over, in readings of a second.
const WINDOW: usize = 30;

/// Sums at one moment.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    steps: u64,
    groups: u64,
    samples: u64,
    sampled: u64,
    trained: u64,
    shares: Shares,
}

impl Reading {
    fn take(hub: &Hub) -> Self {
        Self {
            at: Instant::now(),
            steps: hub.told().step - hub.facts.first_step,
            groups: hub.line.ledger.counts().settled(),
            samples: hub.line.board.stage("sampler").done,
            sampled: hub.meters.sampled_tokens(),
            trained: hub.meters.trained_tokens(),
            shares: hub.line.activity.shares(),
        }
    }
}

/// Tells those that look on how the line is doing, once a second until the end, and then a last time.
pub(super) async fn watch(hub: &Hub, end: impl Future<Output = ()>) {
    tokio::pin!(end);
    let first = Reading::take(hub);
    let mut readings = VecDeque::from([first]);
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_last = tokio::select! {
            _ = ticks.tick() => false,
            () = &mut end => true,
        };
        for (level, text) in troubles::due(is_last) {
            hub.happened(level, text);
        }
        readings.push_back(Reading::take(hub));
        if readings.len() > WINDOW + 1 {
            readings.pop_front();
        }
        let state = state(hub, &first, &readings);
        hub.state.send_replace(state.to_string().into());
        if is_last {
            return;
        }
    }
}

fn state(hub: &Hub, first: &Reading, readings: &VecDeque<Reading>) -> Value {
    let (Some(then), Some(now_)) = (readings.front(), readings.back()) else { return Value::Null };
    let seconds = (now_.at - then.at).as_secs_f64();
    let rate = |of: fn(&Reading) -> u64| {
        if seconds > 0.0 { json!((of(now_) - of(then)) as f64 / seconds) } else { Value::Null }
    };
    let busy = now_.shares.since(&then.shares);
    let share = |part: f64| if busy.wall > 0.0 { json!(part / busy.wall) } else { Value::Null };
    let counts = hub.line.ledger.counts();
    let stages = hub.line.board.read().into_iter().map(|(name, stage)| {
        json!({ "name": name, "busy": stage.busy, "done": stage.done, "failed": stage.failed })
    });
    let lanes = hub.line.lanes().into_iter().map(|lane| {
        json!({
            "name": lane.name, "depth": lane.depth, "capacity": lane.capacity, "sent": lane.sent,
            "wait_s": lane.waited_s, "lost": lane.lost,
        })
    });
    let told = hub.told();
    let steps_so_far = now_.steps as f64;
    let left = hub.facts.steps.saturating_sub(told.step) as f64;
    let eta = (steps_so_far > 0.0).then(|| left * (now_.at - first.at).as_secs_f64() / steps_so_far);
    json!({
        "at": now(),
        "step": told.step,
        "state": told.state,
        "counts": {
            "opened": counts.opened, "trained": counts.trained, "filtered": counts.filtered,
            "dropped": counts.dropped, "failed": counts.failed, "in_flight": counts.in_flight(),
        },
        "credits": hub.line.credits,
        "stages": stages.collect::<Vec<_>>(),
        "lanes": lanes.collect::<Vec<_>>(),
        "rates": {
            "steps": rate(|r| r.steps), "groups": rate(|r| r.groups), "samples": rate(|r| r.samples),
            "tokens_sampled": rate(|r| r.sampled), "tokens_trained": rate(|r| r.trained),
        },
        "busy": {
            "sampling": share(busy.sampling), "scoring": share(busy.scoring), "training": share(busy.training),
            "shadow": share(busy.shadow), "overlap": busy.overlap_share(),
        },
        "trainer": waits_for(hub.line.activity.now()),
        "checkpoint": told.checkpoint.map(|(step, at)| json!({ "step": step, "at": at })),
        "eta_s": eta,
    })
}

/// What the trainer does, in words.
pub fn waits_for(now: Now) -> &'static str {
    match now {
        Now { training: true, .. } => "trains",
        Now { sampling: true, scoring: true, .. } => "waits for sampling and scoring",
        Now { sampling: true, .. } => "waits for sampling",
        Now { scoring: true, .. } => "waits for scoring",
        Now { exporting: true, .. } => "waits for the export",
        _ => "waits",
    }
}
