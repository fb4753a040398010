//! In-flight weights: rollouts follow the weights in training, and steps record the range of versions.

use crate::testkit::{Run, World, local, seconds, trained};
use minds_core::ids::{PolicyVersion, Token};
use minds_core::rollout::Rollout;
use minds_core::sampling::{StopReason, VersionSpan};
use minds_core::service::SamplerWeights;
use minds_simulation::{FaultWindow, SimulatedFault, SimulatedLatency};
use minds_stages::messages::CommittedStep;
use minds_stages::pipeline::ResumePoint;
use minds_stages::scorer::LogprobSource;
use std::num::{NonZeroU64, NonZeroUsize};

/// One group a step, K = 1: a sample takes 10 s for its 8 tokens, a pass 1 s, and nothing else takes time. The pass of
/// version `n` gives every token the logprob that the service gives it under `n` steps.
fn world(weights: SamplerWeights, steps: u64) -> World {
    let mut world = World::new(1, 1, steps);
    world.options.train.weights = weights;
    world.options.max_staleness = 2;
    world.service.sample = SimulatedLatency::constant(10.0);
    world.service.forward_backward = SimulatedLatency::constant(1.0);
    world.service.on_pass =
        trained(|n, rows| rows.iter_mut().flatten().for_each(|logprob| *logprob = -1.0 / (n as f32 + 1.0)));
    world
}

/// Version and tokens of the spans of each group, in the order of the steps.
fn spans(run: &Run) -> Vec<Vec<(u64, usize)>> {
    let of = |span: &VersionSpan| (span.version.0, span.tokens);
    let groups = run.steps.iter().map(|step| &step.groups[0].members[0].rollout);
    groups.map(|rollout| rollout.turns[0].completion.versions.iter().map(of).collect()).collect()
}

/// With 2 K + 1 = 3 groups under way, by hand: groups 0, 1 and 2 are drawn by version 0 from 0 s to 10 s, and trained
/// from 10 s, 11 s and 12 s on. Versions 1, 2 and 3 are published at 11, 12 and 13 s, and each starts a group. Its
/// tokens are drawn 1.25 s apart: group 3 at 11, 12.25, 13.5, … s, so one token each by versions 1 and 2 and six by
/// version 3; group 4 at 12, 13.25, … s; group 5 from 13 s on. The next version is published at 22 s.
#[tokio::test(start_paused = true)]
async fn a_rollout_spans_the_versions_that_are_published_while_it_is_sampled() {
    local(async {
        let mut run = world(SamplerWeights::InFlight, 6).start();
        assert_eq!(run.end().await, Ok(6));
        let expected = [
            vec![(0, 8)],
            vec![(0, 8)],
            vec![(0, 8)],
            vec![(1, 1), (2, 1), (3, 6)],
            vec![(2, 1), (3, 7)],
            vec![(3, 8)],
        ];
        assert_eq!(spans(&run), expected);
        let rollout = |step: usize| &run.steps[step].groups[0].members[0].rollout;
        assert_eq!(rollout(3).turns[0].completion.logprobs, [&[-0.5, -1.0 / 3.0][..], &[-0.25; 6]].concat());
        assert_eq!((rollout(3).policy, rollout(3).newest), (PolicyVersion(1), Some(PolicyVersion(3))));
        assert_eq!(rollout(2).newest, None);
        // Group n is trained by step n + 1, whose weights are version n.
        assert_eq!(run.metric("async/staleness_max"), [0.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
        assert_eq!(run.metric("async/staleness_newest_mean"), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
        let by_token = [0.0, 1.0, 2.0, (2.0 + 1.0) / 8.0, (2.0 + 7.0) / 8.0, 2.0];
        assert_eq!(run.metric("async/staleness_token_mean"), by_token);
        assert_eq!(run.metric("async/version_range_max"), [0.0, 0.0, 0.0, 2.0, 1.0, 0.0]);
        assert_eq!(run.metric("async/swapped_share"), [0.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
        // Three groups in the first 13 s, and three in the 11 s after that.
        assert!((run.elapsed() - 24.0).abs() < 0.05, "{}", run.elapsed());
    })
    .await;
}

/// One sample at a time, so that requests wait on the service and later weights draw their first tokens.
#[tokio::test(start_paused = true)]
async fn the_range_of_versions_begins_with_the_first_token_and_not_with_the_request() {
    local(async {
        let mut world = world(SamplerWeights::InFlight, 8);
        world.service.sampling_slots = NonZeroUsize::new(1);
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(8));
        let rollouts = |step: &CommittedStep| -> Vec<Rollout> {
            step.groups[0].members.iter().map(|member| member.rollout.clone()).collect()
        };
        let first = |rollout: &Rollout| rollout.turns[0].completion.versions[0].version.0;
        let last = |rollout: &Rollout| rollout.turns[0].completion.versions.last().unwrap().version.0;
        for step in &run.steps {
            let rollouts = rollouts(step);
            let ranges: Vec<u64> = rollouts.iter().map(|rollout| last(rollout) - first(rollout)).collect();
            let swapped = ranges.iter().filter(|range| **range > 0).count() as f64;
            let record = &step.record;
            assert_eq!(record.version_range_max, ranges.iter().max().map(|range| *range as f64));
            assert_eq!(record.swapped_share, Some(swapped / rollouts.len() as f64));
        }
        let mut all = run.steps.iter().flat_map(rollouts);
        assert!(all.any(|rollout| rollout.policy.0 < first(&rollout)), "no request waited");
    })
    .await;
}

/// The same with K + 1 = 2 groups under way, which is what one version per rollout allows for the same mean.
#[tokio::test(start_paused = true)]
async fn snapshots_record_no_range() {
    local(async {
        let mut run = world(SamplerWeights::Snapshot, 4).start();
        assert_eq!(run.end().await, Ok(4));
        assert!(spans(&run).iter().all(Vec::is_empty));
        assert_eq!(run.metric("async/staleness_max"), [0.0, 1.0, 1.0, 1.0]);
        for step in &run.steps {
            let record = &step.record;
            let ranges = [record.staleness_newest, record.version_range_max, record.kl_one_version];
            assert_eq!(ranges, [None; 3]);
        }
        assert!(!run.calls().iter().any(|call| call.starts_with("publish")));
    })
    .await;
}

/// By the logprobs above: group 1 is drawn at -1 and trained at -1/2, so half the mean square of the gap is 1/8. Group 3 is
/// drawn at -1/2, -1/3 and six times -1/4, and trained at -1/4, so it is (1/16 + 1/144) / 16.
#[tokio::test(start_paused = true)]
async fn an_alarm_is_raised_by_drift_and_not_by_the_range_of_versions() {
    local(async {
        let mut world = world(SamplerWeights::InFlight, 4);
        world.options.train.kl_alarm = Some(0.004);
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(4));
        let record = |step: usize| &run.steps[step].record;
        let near = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-6;
        assert!(near(record(1).kl_one_version, 0.125) && near(record(1).kl_v2, 0.125));
        assert_eq!((record(0).kl_alarm, record(1).kl_alarm), (Some(0.0), Some(1.0)));
        assert!(near(record(3).kl_v2, (1.0 / 16.0 + 1.0 / 144.0) / 16.0));
        assert_eq!((record(3).kl_one_version, record(3).kl_alarm), (None, None));
    })
    .await;
}

/// Nothing but the rewards' own queries needs a version as it was.
#[tokio::test(start_paused = true)]
async fn versions_are_kept_as_they_were_only_where_something_needs_them() {
    local(async {
        let follow = |source: Option<u64>| {
            let mut world = world(SamplerWeights::InFlight, 2);
            let fixed = minds_simulation::SimulatedService::new(Default::default());
            if let Some(version) = source {
                world.judge = LogprobSource::Fixed(fixed.sampler(version));
            }
            world.start()
        };
        for (source, calls) in [
            (None, "fb optim publish export - fb optim publish export - save 000002-final"),
            (Some(0), "fb optim publish fb optim publish save 000002-final"),
        ] {
            let mut run = follow(source);
            assert_eq!(run.end().await, Ok(2));
            let found =
                run.calls().iter().map(|call| call.replace("publish v1", "publish")).collect::<Vec<_>>();
            let found = found.join(" ").replace("publish v2", "publish");
            assert!(found.starts_with(calls), "{found}");
        }
    })
    .await;
}

/// A straggler is bounded by its oldest version, however new its last tokens are.
#[tokio::test(start_paused = true)]
async fn the_bound_on_staleness_holds_for_the_oldest_version() {
    local(async {
        let mut world = world(SamplerWeights::InFlight, 12);
        // The fourth request takes 100 s.
        world.service.sample_delay = Box::new(|n| if n == 3 { seconds(90) } else { seconds(0) });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(12));
        let staleness = run.metric("async/staleness_max");
        assert!(staleness.iter().all(|steps| *steps <= 2.0), "{staleness:?}");
        let straggler = run.groups().iter().position(|groups| *groups == [3]).unwrap();
        assert_eq!(staleness[straggler], 2.0);
        // It meets the versions until it returns: the step that waits for it publishes nothing meanwhile.
        assert_eq!(run.metric("async/version_range_max")[straggler], 2.0);
    })
    .await;
}

/// An outage while weights are published, a resumed run, and weights that are published every second step.
#[tokio::test(start_paused = true)]
async fn outages_resumption_and_rarer_publications_keep_the_books_and_the_bound() {
    local(async {
        let mut world = world(SamplerWeights::InFlight, 8);
        world.options.train.save_every = 4;
        let window = FaultWindow { at: seconds(12), until: seconds(60), fault: SimulatedFault::Away };
        world.service.faults = vec![window];
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(8));
        let (start, trained) = run.kill();
        assert_eq!((start.step, trained.len()), (8, 8));

        let mut world = self::world(SamplerWeights::InFlight, 14);
        world.options.train.publish_every = NonZeroU64::new(2).unwrap();
        world.options.max_staleness = 3;
        let mut run = world.start_from(ResumePoint { step: 8, ..start });
        assert_eq!(run.end().await, Ok(14));
        let staleness = run.metric("async/staleness_max");
        assert!(staleness.iter().all(|steps| *steps <= 3.0), "{staleness:?}");
        let versions: Vec<u64> = spans(&run).into_iter().flatten().map(|(version, _)| version).collect();
        assert!(versions.iter().all(|version| version % 2 == 0 && *version >= 8), "{versions:?}");
    })
    .await;
}

/// The service drains at 15 s: it returns three of the eight tokens of what is being sampled then. The rest is drawn from
/// there, by the weights of its moment.
#[tokio::test(start_paused = true)]
async fn an_interrupted_sample_is_continued_and_keeps_what_it_has() {
    for weights in [SamplerWeights::Snapshot, SamplerWeights::InFlight] {
        local(async {
            let mut world = world(weights, 6);
            world.service.on_sample = Box::new(move |number, _, sequences| {
                if number == 3 {
                    for sampled in sequences {
                        sampled.tokens = b"abc".iter().copied().map(Token::from).collect();
                        sampled.logprobs = vec![-0.5; 3];
                        sampled.stop = StopReason::Length;
                        if weights == SamplerWeights::InFlight {
                            sampled.versions = vec![VersionSpan { version: PolicyVersion(1), tokens: 3 }];
                        }
                    }
                }
                Ok(())
            });
            let mut run = world.start();
            assert_eq!(run.end().await, Ok(6));
            let asked = run.record.asked();
            // One request for both members, then one for each of them.
            let rest: Vec<_> = asked.iter().filter(|asked| asked.samples == 1).collect();
            assert_eq!(rest.len(), 2);
            let mut groups = run.steps.iter().flat_map(|step| &step.groups);
            let group = groups.find(|group| group.group.id.0 == 3).unwrap();
            for (member, rest) in group.members.iter().zip(&rest) {
                let turn = &member.rollout.turns[0];
                assert_eq!(rest.max_tokens, 5);
                assert_eq!(rest.prompt[..], [&turn.prompt[..], &turn.completion.tokens[..3]].concat());
                assert_eq!(turn.completion.tokens[..3], b"abc".map(Token::from));
                assert_eq!(turn.completion.tokens.len(), turn.completion.logprobs.len());
                assert_eq!(turn.completion.logprobs[..3], [-0.5; 3]);
            }
            assert_ne!(rest[0].seed, rest[1].seed);
            let counted = run.line.ledger().counts();
            assert_eq!((counted.failed, counted.dropped), (0, 0));
        })
        .await;
    }
}
