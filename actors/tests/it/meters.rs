//! The Prometheus metrics agree with the ledger.

use crate::testkit::{Judge, World, local, seconds};
use minds_core::reward::RewardError;
use minds_core::service::BackendError;
use minds_stages::batcher::ConstantGroups;
use minds_stages::telemetry::meters::PipelineMeters;
use prometheus::Registry;
use std::collections::BTreeMap;

/// The value of each series, as the text format names it; of a histogram, its count and its sum.
fn read(meters: &PipelineMeters) -> BTreeMap<String, f64> {
    let registry = Registry::new();
    meters.collectors().into_iter().for_each(|collector| registry.register(collector).unwrap());
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    let series = text.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket{"));
    series
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_counters_are_what_the_ledger_and_the_steps_say() {
    local(async {
        // Two groups of three per step; the second member of every fifth group has no reward.
        let mut world = World { group_size: 3, ..World::new(2, 1, 10) };
        world.options.batch.min_members = std::num::NonZeroUsize::MIN;
        world.service.sample_delay = Box::new(|_| seconds(3));
        world.environment.latency = Box::new(|_, _| seconds(2));
        world.environment.judge = Box::new(|id, _| match id.member {
            1 if id.group.0 % 5 == 0 => Judge::Missing(RewardError::Environment("no".into())),
            member => Judge::Reward(member as f32),
        });
        let meters = world.meters.clone();
        let mut run = world.start();
        run.end().await.unwrap();
        let counts = run.line.ledger().counts();
        let (all, read) = (&run.steps, read(&meters));
        let get = |name: &str| *read.get(name).unwrap_or_else(|| panic!("{name} is not in {read:#?}"));

        let rollouts = get("minds_sampler_rollouts_total{environment=\"scripted\",outcome=\"sampled\"}");
        assert_eq!(rollouts, 3.0 * counts.opened as f64);
        assert_eq!(get("minds_sampler_rollout_seconds_sum{environment=\"scripted\"}"), 3.0 * rollouts);
        let missing = get("minds_scorer_reward_errors_total{cause=\"environment\",environment=\"scripted\"}");
        let scored = get("minds_scorer_scored_total{environment=\"scripted\"}");
        assert!(missing > 0.0 && scored + missing == rollouts, "{scored} + {missing} of {rollouts}");
        assert_eq!(missing, run.quarantined.len() as f64);
        assert_eq!(get("minds_scorer_quarantined_total"), missing);
        assert_eq!(get("minds_scorer_score_seconds_sum{environment=\"scripted\"}"), 2.0 * scored);

        let sum = |key: &str| all.iter().map(|step| step.record.numbers()[key]).sum::<f64>();
        let tokens = all.iter().flat_map(|step| &step.groups).flat_map(|group| group.members.iter());
        let tokens: usize = tokens.map(|member| member.rollout.sampled_tokens()).sum();
        assert_eq!(get("minds_trainer_tokens_total"), tokens as f64);
        let sampled = get("minds_sampler_tokens_total{kind=\"sampled\"}");
        assert_eq!(sampled, tokens as f64 + get("minds_scorer_tokens_discarded_total"));
        assert!((get("minds_trainer_train_seconds_sum") - sum("time/train")).abs() < 1e-9);
        assert_eq!(get("minds_trainer_train_seconds_count"), 10.0);
        assert_eq!(get("minds_trainer_staleness_steps_count"), 20.0);
        let staleness =
            all.iter().map(|step| 2.0 * step.record.numbers()["async/staleness_mean"]).sum::<f64>();
        assert_eq!(get("minds_trainer_staleness_steps_sum"), staleness);
        assert_eq!(get("minds_service_request_seconds_count{operation=\"optim_step\"}"), 10.0);
        assert_eq!(get("minds_service_requests_in_flight{operation=\"sample\"}"), 0.0);
        assert_eq!(
            get("minds_trainer_reward{environment=\"scripted\"}"),
            all[9].record.numbers()["env/scripted/reward/total"]
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_sample_without_tokens_is_counted_and_named() {
    local(async {
        let mut world = World::new(2, 1, 3);
        world.service.on_sample = Box::new(|number, _, samples| {
            if number == 0 {
                samples[0].tokens.clear();
                samples[0].logprobs.clear();
            }
            Ok(())
        });
        let meters = world.meters.clone();
        let mut run = world.start();
        run.end().await.unwrap();
        assert_eq!(read(&meters)["minds_service_empty_samples_total"], 1.0);
        let (first, ..) = run.line.ledger().failures().unwrap();
        assert!(first.contains("a sample has no tokens"), "{first}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn counters_are_there_before_anything_has_happened() {
    local(async {
        // The first request fails once, and one rollout has no reward.
        let mut world = World::new(2, 1, 3);
        let away = || BackendError::Unavailable("away".into());
        world.service.on_sample = Box::new(move |n, _, _| if n == 0 { Err(away()) } else { Ok(()) });
        world.environment.judge = Box::new(|id, _| match (id.group.0, id.member) {
            (1, 0) => Judge::Missing(RewardError::Environment("no".into())),
            (_, member) => Judge::Reward(member as f32),
        });
        let meters = world.meters.clone();
        let mut run = world.start();
        let counters = |of: &BTreeMap<String, f64>| -> BTreeMap<String, f64> {
            of.iter().filter(|(name, _)| name.contains("_total")).map(|(n, v)| (n.clone(), *v)).collect()
        };
        let first = counters(&read(&meters));
        assert!(first.values().all(|value| *value == 0.0), "{first:#?}");
        run.end().await.unwrap();
        let last = counters(&read(&meters));
        for (name, value) in [
            ("minds_scorer_reward_errors_total{cause=\"environment\",environment=\"scripted\"}", 1.0),
            ("minds_scorer_reward_errors_total{cause=\"timed_out\",environment=\"scripted\"}", 0.0),
            ("minds_sampler_rollouts_total{environment=\"scripted\",outcome=\"failed\"}", 0.0),
            ("minds_service_failures_total{kind=\"unavailable\",operation=\"sample\"}", 1.0),
            ("minds_service_failures_total{kind=\"lost\",operation=\"optim_step\"}", 0.0),
        ] {
            assert_eq!((last.get(name), first.get(name)), (Some(&value), Some(&0.0)), "{name}");
        }
        assert_eq!(first.keys().collect::<Vec<_>>(), last.keys().collect::<Vec<_>>(), "none came later");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_trainers_idle_time_is_split_by_what_it_waits_for() {
    local(async {
        // Strictly on-policy, one group: 10 s of sampling, 5 s of scoring, 1 s of training, 2 s of export, five times.
        let mut world = World::new(1, 0, 5);
        world.service.sample_delay = Box::new(|_| seconds(10));
        world.environment.latency = Box::new(|_, _| seconds(5));
        world.service.forward_backward = seconds(1).into();
        world.service.export = seconds(2).into();
        let mut run = world.start();
        run.end().await.unwrap();
        let idle = run.line.observer().activity.shares().idle;
        let near = |value: f64, expected: f64| assert!((value - expected).abs() < 0.1, "{idle:?}");
        near(idle.sampling, 50.0);
        near(idle.scoring, 25.0);
        near(idle.exporting, 10.0);
        // The export of the last state, when all steps are done.
        near(idle.both + idle.nothing, 2.0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tokens_that_were_paid_for_nothing_are_counted_by_verdict() {
    local(async {
        // Every other group has equal rewards, and is replaced.
        let mut world = World::new(1, 0, 4);
        world.options.batch.constant = ConstantGroups::Replace;
        world.environment.judge = crate::testkit::reward_in_every(2);
        let mut run = world.start();
        run.end().await.unwrap();
        let (counts, discarded) = (run.line.ledger().counts(), run.line.ledger().discarded());
        let group: usize =
            run.steps[0].groups[0].members.iter().map(|member| member.rollout.sampled_tokens()).sum();
        assert!(counts.filtered > 0);
        assert_eq!(discarded.filtered, counts.filtered * group as u64);
        assert_eq!((discarded.dropped, discarded.failed), (0, 0));
    })
    .await;
}
