//! Self-driven environments.

use crate::testkit::{Judge, Run, ServiceRecord, World, local, seconds};
use minds_core::environment::{FrozenWeights, Oracle as _};
use minds_core::ids::{GroupId, PolicyVersion, RolloutId};
use minds_core::reward::RewardError;
use minds_core::sampling::{SampleRequest, SamplingParams};
use minds_core::service::BackendError;
use minds_simulation::SimulationOptions;
use minds_stages::generate::RolloutGenerator;
use minds_stages::policy::Policy;
use minds_stages::policy::QueryBudget;
use minds_stages::service::deadlines::Deadlines;
use minds_stages::service::retry::Retry;
use minds_stages::telemetry::activity::Activity;
use minds_stages::telemetry::meters::PipelineMeters;
use std::collections::BTreeSet;
use std::sync::Arc;

#[tokio::test(start_paused = true)]
async fn a_session_is_served_by_the_version_of_its_group_however_late_it_asks() {
    local(async {
        let mut world = World::new(4, 1, 2);
        world.environment.drives_itself = true;
        world.environment.turns = 2;
        world.environment.questions = 1;
        // Every second group is so slow that the weights move on between its two requests.
        world.environment.latency = Box::new(|id, _| seconds(if id.group.0 % 2 == 0 { 1 } else { 60 }));
        let mut run = world.start();
        run.end().await.unwrap();
        let asked = run.record.asked();
        assert_eq!(asked.iter().map(|a| a.seed).collect::<BTreeSet<_>>().len(), asked.len());
        assert!(asked.iter().all(|a| a.samples == 1));
        let mut late = 0;
        for step in &run.steps {
            for member in step.groups.iter().flat_map(|g| g.members.iter()) {
                let (id, version) = (member.rollout.id, member.rollout.policy.0);
                assert_eq!(member.rollout.turns.len(), 2);
                late += u64::from(version + 1 < step.record.step);
                // Minus one under the start weights, minus a half after a step, and so on.
                let heard = run.environment.heard.lock().unwrap();
                let (_, logprob) = heard.iter().find(|(heard, _)| *heard == id).unwrap();
                assert_eq!(*logprob, -1.0 / (version + 1) as f32);
            }
        }
        assert!(late > 0, "no rollout was older than the newest weights");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_seat_without_a_result_costs_only_its_member_and_a_panic_only_its_group() {
    local(async {
        let mut world = World::new(2, 0, 2);
        world.group_size = 4;
        world.environment.drives_itself = true;
        world.environment.judge = Box::new(|id, _| match (id.group.0, id.member) {
            (0, 1) => Judge::Never,
            (1, 3) => Judge::Missing(RewardError::Environment("no such row".into())),
            (2, 1) => Judge::Panic("torn"),
            (_, member) => Judge::Reward(member as f32),
        });
        let mut run = world.start();
        run.end().await.unwrap();
        let counts = run.line.ledger().counts();
        assert_eq!((counts.trained, counts.failed), (4, 1), "the panic left one of four members");
        let missing: Vec<(u64, u32)> =
            run.steps.iter().flat_map(|s| &s.groups).map(|g| (g.group.id.0, g.missing)).collect();
        assert_eq!(missing, [(0, 1), (1, 1), (3, 0), (4, 0)]);
        let unfinished =
            run.quarantined.iter().find(|q| (q.rollout.group.0, q.rollout.member) == (1, 3)).unwrap();
        assert_eq!(unfinished.answers, ["turn 0"], "what was sampled is kept");
    })
    .await;
}

/// Rewards of the group of a step, and how many have none.
fn rewards(run: &Run, step: usize) -> (Vec<f32>, u32) {
    let group = &run.steps[step].groups[0];
    (group.members.iter().map(|member| member.score.reward.get()).collect(), group.missing)
}

#[tokio::test(start_paused = true)]
async fn a_member_without_a_reward_is_seated_again_with_other_samples() {
    local(async {
        let mut world = World::new(1, 0, 2);
        world.group_size = 3;
        world.options.resamples = 2;
        world.environment.drives_itself = true;
        world.environment.judge = Box::new(|id, attempt| match (id.group.0, id.member, attempt) {
            (0, 1, 0) => Judge::Missing(RewardError::Environment("its process died".into())),
            (0, 1, 1) => Judge::Panic("torn"),
            (1, 1, _) => Judge::Never,
            (_, member, attempt) => Judge::Reward((member + 10 * attempt) as f32),
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(2));
        assert_eq!(rewards(&run, 0), (vec![0.0, 21.0, 2.0], 0));
        assert_eq!(rewards(&run, 1), (vec![0.0, 2.0], 1), "twice more, and then it is given up");
        let asked = run.record.asked();
        assert_eq!(asked.len(), 5 + 5);
        assert_eq!(asked.iter().map(|a| a.seed).collect::<BTreeSet<_>>().len(), asked.len());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn members_that_are_compared_are_seated_again_together_and_the_most_rewards_count() {
    local(async {
        let mut world = World::new(1, 0, 2);
        world.group_size = 3;
        world.options.resamples = 2;
        world.environment.drives_itself = true;
        world.environment.compares = true;
        world.environment.judge = Box::new(|id, attempt| match (id.group.0, id.member, attempt) {
            (0, 1, 0) | (1, 1, _) | (1, 0, 1..) => Judge::Missing(RewardError::Environment("no".into())),
            (_, member, attempt) => Judge::Reward((member + 10 * attempt) as f32),
        });
        let mut run = world.start();
        assert_eq!(run.end().await, Ok(2));
        assert_eq!(rewards(&run, 0), (vec![10.0, 11.0, 12.0], 0), "rewards of one play only");
        assert_eq!(rewards(&run, 1), (vec![0.0, 2.0], 1), "the first play had more rewards than the others");
        assert_eq!(run.record.asked().len(), 6 + 9);
    })
    .await;
}

/// The first request to them fails, and is sent again with the same seed.
#[tokio::test(start_paused = true)]
async fn samplers_of_other_weights_are_created_once_and_queried_like_the_policy() {
    local(async {
        let options = SimulationOptions {
            on_sample: Box::new(|number, _, _| match number {
                0 => Err(BackendError::Unavailable("away".into())),
                _ => Ok(()),
            }),
            ..SimulationOptions::default()
        };
        let (service, record) = ServiceRecord::start(options, true);
        let policy = service.sampler(3);
        let with = |queries: QueryBudget| {
            Arc::new(Policy::new(PolicyVersion(3), policy.clone(), Arc::new(queries), None))
        };
        let first_pause = seconds(1);
        let retry =
            Retry { retries: 2, first_pause, longest_pause: first_pause, deadlines: Deadlines::default() };
        let generator = RolloutGenerator {
            seed: 7,
            retry,
            activity: Activity::default(),
            meters: PipelineMeters::default(),
            record_stability_info: false,
        };
        let rollout = RolloutId { group: GroupId(1), member: 0 };

        let policy_with = with(QueryBudget::default().with_service(service));
        let (session, _outcome) = generator.session(rollout, 0, policy_with.clone());
        let base = session.oracle.frozen(FrozenWeights::Base).await.unwrap();
        let tokens = || [1, 2].into();
        // Minus one under the start weights; minus a quarter after the three steps of the policy.
        assert_eq!(base.logprobs(tokens()).await.unwrap()[1], Some(-1.0));
        assert_eq!(session.sampler.logprobs(tokens()).await.unwrap()[1], Some(-0.25));
        base.sample(SampleRequest::new(tokens(), 1, SamplingParams::plain(4))).await.unwrap();
        let own = SamplingParams { seed: Some(5), ..SamplingParams::plain(4) };
        base.sample(SampleRequest::new(tokens(), 1, own)).await.unwrap();
        let asked = record.asked();
        assert_eq!((asked.len(), asked[0].seed == asked[1].seed, asked[2].seed), (3, true, 5));
        let again = policy_with.oracle.frozen(FrozenWeights::Base).await.unwrap();
        let once_more = policy_with.oracle.frozen(FrozenWeights::Base).await.unwrap();
        assert!(Arc::ptr_eq(&again, &once_more), "they are made once");

        let none = session.oracle.frozen(FrozenWeights::Saved("tinker://none".into())).await.err().unwrap();
        assert_eq!(none, RewardError::Refused("nothing is kept under tinker://none".into()));
        let (session, _outcome) = generator.session(rollout, 0, with(QueryBudget::default()));
        assert!(matches!(session.oracle.frozen(FrozenWeights::Base).await, Err(RewardError::Unsupported(_))));
    })
    .await;
}
