//! Ten thousand samples in flight, in real time against a scripted service: what the line itself costs.
//!
//! Prints the Markdown of `benches/README.md`. The yardstick is tokio's own bounded channel, with as many messages.
#![expect(clippy::print_stdout, reason = "the table is the output")]

#[path = "../tests/it/testkit/mod.rs"]
#[expect(dead_code, unused_imports, clippy::unwrap_used, reason = "it is the tests', who use the rest of it")]
mod testkit;

use minds_core::ids::Token;
use minds_stages::kit::CpuPool;
use minds_stages::line::Event;
use std::time::Duration;
use testkit::{World, local};
use tokio::time::Instant;

/// Tokens of every sample.
const TOKENS: usize = 2000;
const GROUPS: usize = 250;
const MEMBERS: u32 = 8;
/// With 250 groups of 8 per step, 10,000 samples are in flight.
const STEPS_OFF_POLICY: u64 = 4;
const STEPS: u64 = 25;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("the operating system refused threads");
    let Figures { samples, messages, cpu, wall } = runtime.block_on(local(run()));
    // The yardstick comes second, so that the peak is the line's.
    let peak = peak_mib();
    let channel = runtime.block_on(channel(messages));
    let each = |seconds: f64, count: u64| 1e6 * seconds / count as f64;
    println!("| measure | unit | line | tokio channel | goal | reached |");
    println!("|---|---|---|---|---|---|");
    let reached = |yes: bool| if yes { "yes" } else { "no" };
    let message = each(cpu, messages);
    println!(
        "| CPU per message between stages, {TOKENS} tokens a sample | µs | {message:.1} | {:.2} | < 20 | {} |",
        each(channel, messages),
        reached(message < 20.0)
    );
    println!("| CPU per sample | µs | {:.1} |  |  |  |", each(cpu, samples));
    println!(
        "| peak memory, {} samples in flight | MiB | {peak:.0} |  | < 500 | {} |",
        GROUPS as u64 * u64::from(MEMBERS) * (STEPS_OFF_POLICY + 1),
        reached(peak < 500.0)
    );
    println!("| samples | 1/s | {:.0} |  |  |  |", samples as f64 / wall);
}

struct Figures {
    samples: u64,
    messages: u64,
    /// Seconds of processor time.
    cpu: f64,
    wall: f64,
}

async fn run() -> Figures {
    let mut world = World::new(GROUPS, STEPS_OFF_POLICY, STEPS);
    world.group_size = MEMBERS;
    world.pool = CpuPool::start(1).expect("the operating system refused a thread");
    world.options.max_staleness = STEPS;
    // 4 to 6 s.
    world.sampling.latency = Box::new(|n| Duration::from_millis(4000 + n as u64 * 7919 % 2000));
    world.sampling.answer = Box::new(|_, sequences| {
        for sampled in sequences {
            sampled.tokens = (0..TOKENS as Token).collect();
            sampled.logprobs = vec![-0.5; TOKENS];
        }
        Ok(())
    });
    let (begun, before) = (Instant::now(), cpu_seconds());
    let mut run = world.start();
    let mut samples = 0;
    loop {
        match run.line.next().await {
            Some(Event::Step(step)) => {
                samples += step.groups.iter().map(|g| g.members.len() as u64).sum::<u64>()
            }
            Some(Event::Failed(why)) => panic!("{why}"),
            Some(Event::Ended { .. }) | None => break,
            Some(_) => {}
        }
    }
    let messages = run.line.lanes().iter().map(|lane| lane.sent).sum();
    Figures { samples, messages, cpu: cpu_seconds() - before, wall: begun.elapsed().as_secs_f64() }
}

/// Processor time of so many messages through a bounded channel, from one task to another.
async fn channel(messages: u64) -> f64 {
    let before = cpu_seconds();
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<Box<u64>>(1000);
    let sending = tokio::spawn(async move {
        for n in 0..messages {
            sender.send(Box::new(n)).await.expect("the receiver waits for all");
        }
    });
    let mut sum = 0;
    while let Some(n) = receiver.recv().await {
        sum += *n;
    }
    sending.await.expect("sending does not panic");
    assert_eq!(sum, messages * (messages - 1) / 2);
    cpu_seconds() - before
}

/// User and system time of this process, in Linux's ticks of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this bench needs Linux");
    // The name may hold spaces; what follows it does not.
    let numbers = stat.rsplit(')').next().unwrap_or_default();
    let ticks = numbers.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// Most memory that the process has had.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this bench needs Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kib.expect("Linux tells the peak") / 1024.0
}
