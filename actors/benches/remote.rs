//! Jobs over a NATS server of its own: how throughput grows with worker processes, and what a job costs.
//!
//! `cargo bench -p minds-stages --bench remote` prints one table; the figures of a date are in `benches/README.md`. The
//! yardstick of each row is what perfect workers would take in the same run.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails as a test does, and prints its table"
)]

#[path = "../tests/it/remote/kit.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod kit;

use futures::future::join_all;
use kit::{Loader, Task, TestBroker, dispatcher, names, remote, reward, rollout, until};
use minds_stages::remote::{Broker, BrokerOptions, Dispatcher, RemoteEnvironment, WorkerOptions, run_worker};
use std::fs;
use std::num::NonZeroUsize;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Tokens of a rollout.
const TOKENS: u32 = 200;
/// Ticks a second of the times in `/proc/<pid>/stat`.
const TICKS: f64 = 100.0;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, url, name, concurrency, milliseconds, kind] = &arguments[..]
        && role == "worker"
    {
        let takes = Duration::from_millis(milliseconds.parse().unwrap());
        return work(
            url,
            name,
            concurrency.parse().unwrap(),
            Task { computes: kind == "computes", ..Task::new(takes) },
        )
        .await;
    }
    println!("{:44} {:>10} {:>10} {:>8}", "jobs", "seconds", "perfect", "ratio");
    for (takes, kind, counts) in [(200, "waits", &[1, 2, 4, 8][..]), (100, "computes", &[1, 2][..])] {
        for &workers in counts {
            scale(takes, kind, workers).await;
        }
    }
    overhead().await;
    queue().await;
}

/// A worker process, until it is killed.
async fn work(url: &str, name: &str, concurrency: usize, task: Task) {
    let broker = Broker::connect(&BrokerOptions::new(url, name), names()).await.unwrap();
    let options = WorkerOptions {
        name: name.into(),
        program: "bench".into(),
        concurrency: NonZeroUsize::new(concurrency).unwrap(),
        environments: Vec::new(),
        run: None,
        grace: Duration::ZERO,
    };
    let (_stop, stopped) = watch::channel(false);
    run_worker(broker, Arc::new(Loader(Arc::new(task))), options, stopped).await;
}

struct Worker(Child);

impl Worker {
    fn start(broker: &TestBroker, number: usize, concurrency: usize, takes: u64, kind: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["worker", &broker.url(), &format!("worker-{number}"), &concurrency.to_string()]);
        Self(command.args([&takes.to_string(), kind]).stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A run with `workers` worker processes, all of which have joined.
async fn joined(
    workers: usize,
    concurrency: usize,
    takes: u64,
    kind: &str,
) -> (TestBroker, Dispatcher, Arc<RemoteEnvironment>, Vec<Worker>) {
    let broker = TestBroker::start().await;
    let dispatcher = dispatcher(&broker, 100).await;
    let processes =
        (0..workers).map(|number| Worker::start(&broker, number, concurrency, takes, kind)).collect();
    let serving = || dispatcher.workers().iter().filter(|worker| !worker.report.serves.is_empty()).count();
    until(|| serving() == workers).await;
    let environment = Arc::new(remote(&Arc::new(Task::new(Duration::ZERO)), &dispatcher));
    (broker, dispatcher, environment, processes)
}

/// Computes `jobs` rewards, all submitted at once. Returns the time in seconds.
async fn rewards(environment: &RemoteEnvironment, jobs: u64) -> f64 {
    let begun = Instant::now();
    let rollouts: Vec<_> = (0..jobs).map(|group| rollout(group, (0..TOKENS).collect())).collect();
    for scored in join_all(rollouts.iter().map(|rollout| reward(environment, rollout))).await {
        scored.unwrap();
    }
    begun.elapsed().as_secs_f64()
}

/// Rewards that wait or compute, on `workers` processes with one job each at a time.
async fn scale(takes: u64, kind: &str, workers: usize) {
    let (_broker, _, environment, _processes) = joined(workers, 1, takes, kind).await;
    let jobs = 25 * workers as u64;
    let seconds = rewards(&environment, jobs).await;
    let perfect = 25.0 * takes as f64 / 1000.0;
    let name = format!("{jobs} that {} {takes} ms, {workers} workers", kind.trim_end_matches('s'));
    println!("{name:44} {seconds:10.2} {perfect:10.2} {:8.3}", perfect / seconds);
}

/// What a job without work costs the run and the worker.
async fn overhead() {
    const JOBS: u64 = 5000;
    let (_broker, _, environment, processes) = joined(1, 16, 0, "waits").await;
    rewards(&environment, 200).await;
    let worker = processes[0].0.id();
    let before = (cpu_seconds("self"), cpu_seconds(&worker.to_string()));
    let seconds = rewards(&environment, JOBS).await;
    let run = (cpu_seconds("self") - before.0) * 1e3 / JOBS as f64;
    let worker = (cpu_seconds(&worker.to_string()) - before.1) * 1e3 / JOBS as f64;
    println!(
        "{JOBS} without work: {:.0} jobs/s; {run:.3} ms of CPU a job in the run, {worker:.3} ms in the worker",
        JOBS as f64 / seconds
    );
}

/// What ten thousand jobs that wait for a worker take in the run.
async fn queue() {
    const JOBS: u64 = 10_000;
    let (_broker, dispatcher, environment, _) = joined(0, 1, 0, "waits").await;
    let before = resident_mib();
    let waiting = tokio::spawn(async move { rewards(&environment, JOBS).await });
    until(|| dispatcher.counts().queued == JOBS).await;
    // The broker has them all once the first audit finds none missing.
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("{JOBS} queued: {:.0} MiB in the run ({TOKENS} tokens each)", resident_mib() - before);
    waiting.abort();
}

/// CPU time of a process so far.
fn cpu_seconds(process: &str) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = fields.split(' ').collect();
    // utime and stime are the fields 14 and 15 of all (proc(5)); two stand before the parenthesis.
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / TICKS
}

fn resident_mib() -> f64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096.0 / f64::from(1 << 20)
}
