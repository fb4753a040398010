//! Ten thousand samples in flight, in real time against a scripted service: what the line itself costs.
//!
//! Prints the Markdown of `benches/README.md`. The baseline is tokio's own bounded channel, with as many messages.
#![expect(clippy::print_stdout, reason = "the table is the output")]

#[path = "../../benches/shared/cpu.rs"]
mod cpu;
#[path = "../tests/it/testkit/mod.rs"]
#[expect(dead_code, unused_imports, clippy::unwrap_used, reason = "it is the tests', who use the rest of it")]
mod testkit;

use cpu::cpu_seconds;
use minds_core::ids::Token;
use minds_stages::batcher::CpuPool;
use minds_stages::pipeline::PipelineEvent;
use std::time::Duration;
use testkit::{World, local};
use tokio::time::Instant;

/// Tokens of every sample: as many as a long answer has, and so few that what is left is the messages.
const TOKENS: [usize; 2] = [2000, 16];
const GROUPS: usize = 250;
const MEMBERS: u32 = 8;
/// With 250 groups of 8 per step, 10,000 samples are in flight.
const STEPS_OFF_POLICY: u64 = 4;
const STEPS: u64 = 25;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("the operating system refused threads");
    let [long, short] = TOKENS;
    let full = runtime.block_on(local(run(long, Duration::from_secs(6))));
    // The others come later, so that the peak is this one's.
    let peak = peak_mib();
    // As fast as it goes: threads that sleep between two messages cost more than messages.
    let bare = runtime.block_on(local(run(short, Duration::from_millis(500))));
    let channel = runtime.block_on(channel(bare.messages));
    let each = |seconds: f64, count: u64| 1e6 * seconds / count as f64;
    let reached = |yes: bool| if yes { "yes" } else { "no" };
    println!("| measure | unit | line | tokio channel | goal | reached |");
    println!("|---|---|---|---|---|---|");
    let message = each(bare.cpu, bare.messages);
    println!(
        "| CPU per message between stages, {short} tokens a sample | µs | {message:.1} | {:.2} | < 20 | {} |",
        each(channel, bare.messages),
        reached(message < 20.0)
    );
    println!("| the same, {long} tokens a sample | µs | {:.1} |  |  |  |", each(full.cpu, full.messages));
    println!("| CPU per sample, {long} tokens | µs | {:.1} |  |  |  |", each(full.cpu, full.samples));
    println!(
        "| peak memory, {} samples of {long} tokens in flight | MiB | {peak:.0} |  | < 500 | {} |",
        GROUPS as u64 * u64::from(MEMBERS) * (STEPS_OFF_POLICY + 1),
        reached(peak < 500.0)
    );
    let rate = |figures: &Figures| figures.samples as f64 / figures.wall;
    println!("| samples of {short} tokens | 1/s | {:.0} |  |  |  |", rate(&bare));
    println!("| samples of {long} tokens, each of up to 6 s | 1/s | {:.0} |  |  |  |", rate(&full));
}

struct Figures {
    samples: u64,
    messages: u64,
    /// Seconds of processor time.
    cpu: f64,
    wall: f64,
}

async fn run(tokens: usize, longest: Duration) -> Figures {
    let mut world = World::new(GROUPS, STEPS_OFF_POLICY, STEPS);
    world.group_size = MEMBERS;
    world.pool = CpuPool::start(1).expect("the operating system refused a thread");
    world.options.max_staleness = STEPS;
    world.service.sample_delay = Box::new(move |n| longest.mul_f64(0.7 + 0.3 * (n as f64 * 0.618).fract()));
    world.service.on_sample = Box::new(move |_, _, sequences| {
        for sampled in sequences {
            sampled.tokens = (0..tokens as Token).collect();
            sampled.logprobs = vec![-0.5; tokens];
        }
        Ok(())
    });
    world.remember = false;
    let (begun, before) = (Instant::now(), cpu_seconds());
    let mut run = world.start();
    let mut samples = 0;
    loop {
        match run.line.next().await {
            Some(PipelineEvent::Step(step)) => {
                samples += step.groups.iter().map(|g| g.members.len() as u64).sum::<u64>()
            }
            Some(PipelineEvent::Failed(why)) => panic!("{why}"),
            Some(PipelineEvent::Ended { .. }) | None => break,
            Some(_) => {}
        }
    }
    let messages = run.line.mailboxes().iter().map(|lane| lane.sent).sum();
    Figures { samples, messages, cpu: cpu_seconds() - before, wall: begun.elapsed().as_secs_f64() }
}

/// CPU seconds that `messages` messages take through a bounded channel from one task to another.
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

/// Most memory that the process has had.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this bench needs Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kib.expect("Linux reports the peak memory") / 1024.0
}
