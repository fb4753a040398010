//! What watching a run costs: the processor time of the dashboard's thread beside that of the whole process, while
//! Prometheus scrapes every second and a page is connected.
//!
//! Baseline: the same process's own work in the same run. The thread's time comes from the kernel, so it is exact however
//! noisy the machine is. Stages count on their own threads; what a count costs is measured alone and multiplied.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench prints, measures real time, and ends at the first surprise"
)]

use minds_core::ids::{GroupId, ItemKey, PolicyVersion, RolloutId};
use minds_core::rollout::Rollout;
use minds_stages::telemetry::meters::PipelineMeters;
use prometheus::Registry;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Seconds that are measured.
const SECONDS: u64 = 20;

fn ask(addr: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").unwrap();
    stream
}

/// User and system time in the kernel's hundredths of a second.
fn ticks(stat: &str) -> f64 {
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()
}

/// Seconds of the process, and of its thread of this name.
fn times(pid: u32, thread: &str) -> (f64, f64) {
    let whole = ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap());
    let stats = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().filter_map(Result::ok);
    let stats = stats.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let own: f64 = stats.filter(|stat| stat.contains(&format!("({thread})"))).map(|stat| ticks(&stat)).sum();
    (whole / 100.0, own / 100.0)
}

fn value(text: &str, name: &str) -> f64 {
    let lines = text.lines().filter(|line| line.starts_with(name) && !line.starts_with('#'));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/ci_test.toml");
    let mut run = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    run.args([
        "run",
        config,
        "--max-steps",
        "1000000",
        "--set",
        "metrics.addr=\"127.0.0.1:0\"",
        "--output-dir",
    ]);
    // One-token answers in large groups: as many samples as the engine gives.
    run.arg(dir.path()).args([
        "--set",
        "trainer.args.max_new_tokens=1",
        "--set",
        "trainer.rollouts_per_example=64",
    ]);
    run.args(["--set", "trainer.save_every=0"]);
    let mut child = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.by_ref().find(|line| line.starts_with("dashboard")).unwrap();
    let addr = line.split("http://").nth(1).unwrap().trim_end_matches('/').to_owned();
    lines.by_ref().find(|line| line.starts_with("step 10 ")).unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    let page = ask(&addr, "/api/live");
    std::thread::spawn(move || BufReader::new(page).lines().for_each(drop));

    let scrape = || {
        let mut text = String::new();
        ask(&addr, "/metrics").read_to_string(&mut text).unwrap();
        text
    };
    let (before, first, begun) = (times(child.id(), "dashboard"), scrape(), Instant::now());
    let mut bytes = 0;
    for _ in 0..SECONDS {
        std::thread::sleep(Duration::from_secs(1));
        bytes = scrape().len();
    }
    let (after, last, seconds) = (times(child.id(), "dashboard"), scrape(), begun.elapsed().as_secs_f64());
    child.kill().unwrap();
    child.wait().unwrap();

    let samples =
        value(&last, "minds_sampler_rollouts_total") - value(&first, "minds_sampler_rollouts_total");
    let (whole, own) = (after.0 - before.0, after.1 - before.1);
    println!("{:.0} samples/s, {:.2} cores busy, {bytes} bytes a scrape", samples / seconds, whole / seconds);
    println!("dashboard's thread: {own:.2} s of {whole:.2} s, {:.2} %", 100.0 * own / whole);

    let meters = PipelineMeters::default();
    let registry = Registry::new();
    meters.collectors().into_iter().for_each(|collector| registry.register(collector).unwrap());
    const TIMES: u32 = 1_000_000;
    let begun = Instant::now();
    let (id, item) = (RolloutId { group: GroupId(0), member: 0 }, ItemKey { component: 0, item: 0 });
    let rollout = Rollout::new(id, item, PolicyVersion(0));
    for n in 0..TIMES {
        let took = Duration::from_micros(u64::from(n));
        meters.rollout("an_environment", Some(&rollout), took);
        meters.scored("an_environment", f64::from(n % 7) / 7.0, took);
    }
    let each = begun.elapsed().as_secs_f64() / f64::from(TIMES);
    let share = each * samples / whole;
    println!("counting a sample: {:.2} µs, {:.2} % at this rate", 1e6 * each, 100.0 * share);
}
