//! Jobs without failures.

use super::kit::{
    TASK, Task, TestBroker, TestModel, TestWorker, dispatcher, names, remote, reward, rollout, until,
};
use minds_core::environment::RolloutSession;
use minds_core::ids::{GroupId, RolloutId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

#[tokio::test]
async fn rewards_of_a_worker_are_those_of_the_environment() {
    let broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 5).await;
    let task = Arc::new(Task::new(Duration::ZERO));
    let _worker = TestWorker::start(&broker, "a", &task, 4);
    let remote = remote(&task, &dispatcher);
    // The last rollout and its answer exceed the broker's payload limit.
    let random = |n: u32| n.wrapping_mul(2_654_435_761);
    let lengths = (1..40).chain([400_000]);
    let rollouts =
        lengths.enumerate().map(|(n, length)| rollout(n as u64, (0..length).map(random).collect()));
    for rollout in rollouts {
        let there = reward(&remote, &rollout).await.unwrap();
        let here = reward(&*task, &rollout).await.unwrap();
        assert_eq!(there, here);
    }
    let counts = dispatcher.counts();
    assert_eq!((counts.done, counts.queued, counts.running, counts.redelivered), (40, 0, 0, 0));
    let workers = dispatcher.workers();
    assert_eq!((&*workers[0].report.worker, workers[0].results), ("a", 40));
    dispatcher.close(true).await;
    let stream = broker.connect().await.stream().await.unwrap();
    let info = stream.cached_info();
    assert_eq!(
        (info.state.messages, info.state.consumer_count),
        (0, 0),
        "a finished run leaves no messages or consumers"
    );
}

#[tokio::test]
async fn a_self_driven_environment_samples_through_the_run() {
    let broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 5).await;
    let task = Arc::new(Task { self_driven: true, ..Task::new(Duration::ZERO) });
    let _worker = TestWorker::start(&broker, "a", &task, 2);
    let remote = remote(&task, &dispatcher);
    let mut both = Vec::new();
    for environment in [&remote as &dyn minds_core::environment::Environment, &*task] {
        let item = environment.item(5);
        let (sessions, results): (Vec<_>, Vec<_>) = (0..3)
            .map(|member| {
                let (finished, result) = oneshot::channel();
                let id = RolloutId { group: GroupId(5), member };
                let finish = move |result| finished.send(result).unwrap();
                let mut session = RolloutSession::new(id, Arc::new(TestModel), Arc::new(TestModel), finish);
                session.attempt = member;
                (session, result)
            })
            .unzip();
        environment.self_driven().unwrap().run_rollouts(&item, sessions).await;
        let mut rollouts = Vec::new();
        for result in results {
            rollouts.push(result.await.unwrap().unwrap());
        }
        both.push(rollouts);
    }
    assert_eq!(both[0], both[1]);
    assert_eq!(
        both[0][2].turns[0].completion.tokens,
        [2, 5, 7],
        "prompt, item and attempt of its own session"
    );
    assert_eq!(dispatcher.counts().done, 3, "one job for each rollout");
}

#[tokio::test]
async fn a_withdrawn_job_leaves_the_queue_and_its_worker() {
    let broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 5).await;
    let task = Arc::new(Task::new(Duration::from_secs(600)));
    let remote = Arc::new(remote(&task, &dispatcher));
    let _worker = TestWorker::start(&broker, "a", &task, 1);
    let submit = |group: u64| {
        let remote = remote.clone();
        tokio::spawn(async move { reward(&*remote, &rollout(group, vec![1])).await })
    };
    let running = submit(0);
    task.wait_begun(1).await;
    let queued = submit(1);
    until(|| dispatcher.counts().queued == 1).await;
    queued.abort();
    running.abort();
    // The worker starts the next job at once, although the first would have taken ten minutes.
    let next = submit(2);
    task.wait_begun(2).await;
    next.abort();
    let client = broker.connect().await;
    let mut left = u64::MAX;
    for _ in 0..200 {
        left = client.stream().await.unwrap().cached_info().state.messages;
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(left, 0);
    assert_eq!(task.times_scored(), 0);
}

#[tokio::test]
async fn a_worker_with_another_version_takes_no_job_and_says_why() {
    let broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 5).await;
    let task = Arc::new(Task::new(Duration::ZERO));
    let other = Arc::new(Task { version: "2", ..Task::new(Duration::ZERO) });
    let _other = TestWorker::start(&broker, "other", &other, 4);
    let remote = Arc::new(remote(&task, &dispatcher));
    let waiting = tokio::spawn(async move { reward(&*remote, &rollout(0, vec![1])).await });
    until(|| !dispatcher.workers().is_empty() && !dispatcher.workers()[0].report.problems.is_empty()).await;
    let problem = (TASK.to_owned(), "it is version 2 here".to_owned());
    assert_eq!(dispatcher.workers()[0].report.problems, [problem]);
    assert_eq!(dispatcher.counts().queued, 1);
    let _right = TestWorker::start(&broker, "right", &task, 1);
    assert!(waiting.await.unwrap().is_ok());
    assert_eq!(other.times_scored(), 0);
}

#[tokio::test]
async fn results_that_nobody_waits_for_are_counted_and_dropped() {
    let broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 5).await;
    let task = Arc::new(Task::new(Duration::ZERO));
    let _worker = TestWorker::start(&broker, "a", &task, 1);
    let remote = remote(&task, &dispatcher);
    // An attacker with the permissions of a worker can read questions, which contain job ids.
    let stranger = broker.connect().await;
    let mut questions = stranger.client.subscribe(names().questions("run")).await.unwrap();
    reward(&remote, &rollout(0, vec![1])).await.unwrap();
    let question = futures::StreamExt::next(&mut questions).await.unwrap();
    let question: minds_stages::remote::message::Question =
        minds_stages::remote::message::decode(&question.payload).unwrap();
    let forged = minds_stages::remote::message::encode(&minds_stages::remote::message::JobResult {
        worker: "forger".into(),
        delivery: 1,
        took: Duration::ZERO,
        outcome: minds_stages::remote::message::Outcome::Dead("forged".into()),
    });
    // Until the run has acknowledged the first result, the stream rejects another one.
    let send = async |job: &str| {
        while stranger
            .jetstream
            .publish(names().result("run", job), forged.clone().into())
            .await
            .unwrap()
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    send(&question.job).await;
    until(|| dispatcher.counts().duplicate == 1).await;
    send("0-0-0-guessed").await;
    // A result with a guessed id has no effect, because the job of that rollout has another id.
    assert!(reward(&remote, &rollout(0, vec![2])).await.is_ok());
    assert_eq!(dispatcher.counts().dead, 0);
}
