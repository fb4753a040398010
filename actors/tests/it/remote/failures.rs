//! Failures of workers, brokers and runs. Each job still has exactly one result.

use super::kit::{
    Task, TestBroker, TestWorker, dispatcher, dispatcher_on, names, remote, reward, rollout, until,
};
use futures::future::join_all;
use minds_core::reward::{RewardError, Score};
use minds_stages::remote::dead_letters;
use minds_stages::remote::{RemoteEnvironment, StreamSettings};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::JoinHandle;

const SHORT: Duration = Duration::from_millis(30);

type Rewards = JoinHandle<Vec<Result<Score, RewardError>>>;

/// Submits the rewards of `count` rollouts at once.
fn submit(environment: &Arc<RemoteEnvironment>, count: u64) -> Rewards {
    let environment = environment.clone();
    tokio::spawn(async move {
        let rollouts: Vec<_> = (0..count).map(|group| rollout(group, vec![group as u32])).collect();
        join_all(rollouts.iter().map(|rollout| reward(&*environment, rollout))).await
    })
}

/// Checks that each rollout has the reward that the local environment computes.
async fn check(task: &Task, rewards: Rewards, count: u64) {
    let rewards =
        tokio::time::timeout(Duration::from_secs(120), rewards).await.expect("a job is stuck").unwrap();
    assert_eq!(rewards.len() as u64, count);
    for (group, there) in (0..).zip(rewards) {
        assert_eq!(there, reward(task, &rollout(group, vec![group as u32])).await, "group {group}");
    }
}

#[tokio::test]
async fn killed_workers_lose_no_job() {
    let broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 100).await;
    let task = Arc::new(Task::new(SHORT));
    let rewards = submit(&Arc::new(remote(&task, &dispatcher)), 120);
    for life in 0..5 {
        let mut worker = TestWorker::start(&broker, &format!("killed-{life}"), &task, 4);
        task.wait_begun(task.begun.load(Relaxed) + 8).await;
        worker.kill();
    }
    let _last = TestWorker::start(&broker, "last", &task, 8);
    check(&task, rewards, 120).await;
    let counts = dispatcher.counts();
    assert_eq!(counts.done, 120);
    assert!(counts.redelivered > 0, "{counts:?}");
}

#[tokio::test]
async fn a_broker_that_crashes_and_comes_back_loses_no_job() {
    let mut broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 100).await;
    let task = Arc::new(Task::new(SHORT));
    let remote = Arc::new(remote(&task, &dispatcher));
    let _worker = TestWorker::start(&broker, "a", &task, 4);
    let first = submit(&remote, 60);
    task.wait_begun(10).await;
    broker.kill();
    until(|| !dispatcher.broker().state().is_connected()).await;
    // Submitted while the broker is down: these jobs wait in the run.
    let second = {
        let remote = remote.clone();
        tokio::spawn(async move {
            let rollouts: Vec<_> = (0..20).map(|group| rollout(group, vec![1000])).collect();
            join_all(rollouts.iter().map(|rollout| reward(&*remote, rollout))).await
        })
    };
    broker.restart(true).await;
    check(&task, first, 60).await;
    let second = tokio::time::timeout(Duration::from_secs(60), second).await.unwrap().unwrap();
    assert!(second.iter().all(Result::is_ok));
    assert_eq!(dispatcher.counts().done, 80);
    assert!(dispatcher.broker().state().reconnects() >= 1);
}

#[tokio::test]
async fn a_broker_that_lost_its_data_gets_the_jobs_again() {
    let mut broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 100).await;
    let task = Arc::new(Task::new(SHORT));
    let rewards = submit(&Arc::new(remote(&task, &dispatcher)), 30);
    until(|| dispatcher.counts().queued == 30).await;
    broker.kill();
    broker.restart(false).await;
    let _worker = TestWorker::start(&broker, "a", &task, 4);
    check(&task, rewards, 30).await;
}

#[tokio::test]
async fn a_stopped_worker_finishes_or_hands_back() {
    let broker = TestBroker::start().await;
    // One delivery is all that a job has, and a job that is handed back has not used it.
    let dispatcher = dispatcher(&broker, 1).await;
    let task = Arc::new(Task::new(Duration::from_millis(300)));
    let remote = Arc::new(remote(&task, &dispatcher));
    let patient = TestWorker::start(&broker, "patient", &task, 2);
    let rewards = submit(&remote, 2);
    task.wait_begun(2).await;
    let summary = patient.stop().await;
    assert_eq!((summary.done, summary.handed_back), (2, 0));
    check(&task, rewards, 2).await;

    let slow = Arc::new(Task::new(Duration::from_secs(600)));
    let hasty = TestWorker::with_grace(&broker, "hasty", &slow, 2, Duration::ZERO);
    let rewards = submit(&remote, 2);
    slow.wait_begun(2).await;
    let _other = TestWorker::start(&broker, "other", &task, 2);
    let summary = hasty.stop().await;
    assert_eq!((summary.done, summary.handed_back), (0, 2));
    check(&task, rewards, 2).await;
    assert_eq!(dispatcher.counts().dead, 0);
}

#[tokio::test]
async fn a_job_that_no_worker_survives_becomes_a_dead_letter_and_can_be_queued_again() {
    let broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 1).await;
    let deadly = Arc::new(Task::new(Duration::from_secs(600)));
    let remote = Arc::new(remote(&deadly, &dispatcher));
    let rewards = submit(&remote, 1);
    let mut worker = TestWorker::start(&broker, "victim", &deadly, 1);
    deadly.wait_begun(1).await;
    worker.kill();
    let task = Arc::new(Task::new(SHORT));
    let _next = TestWorker::start(&broker, "next", &task, 1);
    let rewards = tokio::time::timeout(Duration::from_secs(60), rewards).await.unwrap().unwrap();
    let Err(RewardError::Environment(why)) = &rewards[0] else { panic!("{rewards:?}") };
    assert!(why.contains("no worker finished it") && why.contains("delivered 1 times"), "{why}");
    assert_eq!(dispatcher.counts().dead, 1);

    let client = broker.connect().await;
    let letters = dead_letters::list(&client, Some("run")).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert!(letters[0].letter.job.starts_with("0-0-0-"));
    assert!(dead_letters::list(&client, Some("other")).await.unwrap().is_empty());
    dead_letters::replay(&client, &letters[0]).await.unwrap();
    assert!(dead_letters::list(&client, None).await.unwrap().is_empty());
    // The run has already settled the job and answers that, so the worker drops it.
    let mut left = u64::MAX;
    while left > 0 {
        left = client.stream().await.unwrap().cached_info().state.messages;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(dispatcher.counts().done, 1);
}

#[tokio::test]
async fn a_run_that_restarts_takes_up_results_that_came_while_it_was_gone() {
    let broker = TestBroker::start().await;
    let task = Arc::new(Task::new(SHORT));
    let _worker = {
        let first = dispatcher(&broker, 100).await;
        let remote = Arc::new(remote(&task, &first));
        let rewards = submit(&remote, 8);
        until(|| first.counts().queued == 8).await;
        let worker = TestWorker::start(&broker, "a", &task, 8);
        task.wait_begun(8).await;
        // Like kill -9: waiting jobs are not canceled, and nothing is deleted.
        first.close(false).await;
        rewards.abort();
        worker
    };
    let client = broker.connect().await;
    let results = async || {
        let stream = client.stream().await.unwrap();
        let found = stream.info_with_subjects(names().results("run")).await.unwrap();
        futures::TryStreamExt::try_collect::<Vec<_>>(found).await.unwrap().len()
    };
    let mut stored = 0;
    for _ in 0..500 {
        stored = results().await;
        if stored > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let again = dispatcher(&broker, 100).await;
    let rewards = submit(&Arc::new(remote(&task, &again)), 8);
    check(&task, rewards, 8).await;
    assert!(again.counts().done == 8, "{stored} {:?}", again.counts());
}

/// Simulates a consumer that skips queued jobs, as after some server failures (nats-server issue 7680).
#[tokio::test]
async fn a_consumer_that_hands_out_nothing_is_made_again() {
    let broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 100).await;
    let task = Arc::new(Task::new(SHORT));
    let rewards = submit(&Arc::new(remote(&task, &dispatcher)), 5);
    until(|| dispatcher.counts().queued == 5).await;
    let client = broker.connect().await;
    let stream = client.stream().await.unwrap();
    let name = names().job_consumer("run", super::kit::TASK);
    stream.delete_consumer(&name).await.unwrap();
    let skipping = async_nats::jetstream::consumer::pull::Config {
        durable_name: Some(name),
        filter_subject: names().jobs("run", "nothing"),
        ack_policy: async_nats::jetstream::consumer::AckPolicy::Explicit,
        ..Default::default()
    };
    stream.create_consumer(skipping).await.unwrap();
    let _worker = TestWorker::start(&broker, "a", &task, 2);
    check(&task, rewards, 5).await;
}

/// A worker that has waited for a while takes the next job at once.
#[tokio::test]
async fn an_idle_worker_misses_no_job() {
    let broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 100).await;
    let task = Arc::new(Task::new(SHORT));
    let _worker = TestWorker::start(&broker, "idle", &task, 2);
    let remote = Arc::new(remote(&task, &dispatcher));
    check(&task, submit(&remote, 1), 1).await;
    // In the middle of a request for jobs, after the time of a heartbeat.
    tokio::time::sleep(Duration::from_millis(3500)).await;
    check(&task, submit(&remote, 2), 2).await;
    assert_eq!(dispatcher.counts().redelivered, 0);
}

/// An operator, or a broker that lost part of its state, may remove the consumer alone.
#[tokio::test]
async fn a_consumer_that_was_deleted_is_made_again() {
    let broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 100).await;
    let task = Arc::new(Task::new(SHORT));
    let rewards = submit(&Arc::new(remote(&task, &dispatcher)), 5);
    until(|| dispatcher.counts().queued == 5).await;
    let stream = broker.connect().await.stream().await.unwrap();
    stream.delete_consumer(&names().job_consumer("run", super::kit::TASK)).await.unwrap();
    let _worker = TestWorker::start(&broker, "a", &task, 2);
    check(&task, rewards, 5).await;
}

/// A stream that takes a fraction of the jobs. Its results must find room, or no job would ever leave it.
#[tokio::test]
async fn a_stream_full_of_jobs_has_room_for_results() {
    let broker = TestBroker::start().await;
    let settings = StreamSettings { max_bytes: 8 << 10, ..StreamSettings::default() };
    let dispatcher = dispatcher_on(&broker, 100, settings).await;
    let task = Arc::new(Task::new(SHORT));
    let remote = Arc::new(remote(&task, &dispatcher));
    let rewards = submit(&remote, 60);
    let client = broker.connect().await;
    let mut bytes = 0;
    while bytes < 3 << 10 {
        bytes = client.stream().await.unwrap().cached_info().state.bytes;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let _worker = TestWorker::start(&broker, "a", &task, 4);
    check(&task, rewards, 60).await;
}
