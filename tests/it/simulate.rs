//! `simulate`: whole runs in virtual time, against what queueing theory says of them.

use crate::command::output;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Every stage serves one at a time, groups have one member and batches one group.
const QUEUES: &str = r#"
env = { id = "target_number" }
model = { base_model = "tiny-random" }
tinker = { base_url = "embedded" }
scorer = { workers = 1 }

[trainer]
rollouts_per_example = 1
advantage = "none"
groups_per_batch = 1
save_every = 0
args = { max_new_tokens = 8 }

[simulate]
steps = 20000
sampling_slots = 1
optim_step = 0
export = 0
"#;

/// Eight groups of eight, long tails.
const TAILS: &str = r#"
env = { id = "target_number" }
model = { base_model = "tiny-random" }
tinker = { base_url = "embedded" }

[trainer]
rollouts_per_example = 8
groups_per_batch = 8
async_off_policy_steps = 2
save_every = 0
args = { max_new_tokens = 8 }

[simulate]
sample = { mean = 1.0, spread = "lognormal", sigma = 0.6, tail_share = 0.03, tail_factor = 6 }
forward_backward = 0.33
optim_step = 0.1
export = 0.3
"#;

/// Four groups of eight, scored by workers behind a broker without an address.
const WORKERS: &str = r#"
env = { id = "target_number" }
model = { base_model = "tiny-random" }
tinker = { base_url = "embedded" }
scorer = { transport = "nats" }

[trainer]
rollouts_per_example = 8
groups_per_batch = 4
async_off_policy_steps = 3
save_every = 0
args = { max_new_tokens = 8 }

[simulate]
workers = 8
sample = 1
reward = 2
forward_backward = 0.5
optim_step = 0
export = 0
"#;

fn simulate(dir: &Path, config: &str, more: &[String]) -> (Option<i32>, String, String) {
    let path = dir.join("simulated.toml");
    std::fs::write(&path, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    output(command.env_remove("NATS_URL").arg("simulate").arg(path).args(more))
}

fn numbers(config: &str, sets: &[String]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let sets = sets.iter().flat_map(|set| ["--set".to_owned(), set.clone()]);
    let (code, out, err) =
        simulate(dir.path(), config, &sets.chain(["--json".to_owned()]).collect::<Vec<_>>());
    assert_eq!(code, Some(0), "{err}");
    serde_json::from_str(&out).unwrap()
}

fn spread(key: &str, mean: f64, spread: &str) -> String {
    format!("simulate.{key}={{ mean = {mean}, spread = \"{spread}\" }}")
}

fn f64_of(found: &Value, key: &str) -> f64 {
    found[key].as_f64().unwrap_or_else(|| panic!("{key} in {found}"))
}

/// `W` jobs that go round `n` equal exponential servers keep each of them busy for `W / (W + n - 1)` of the time
/// (Jackson 1963; Gordon and Newell 1967). For two servers that is the classic result for `b = W - 2` places between
/// them, `(b + 2) / (b + 3)`.
#[test]
fn equal_stages_are_as_busy_as_a_closed_network_of_queues() {
    for credits in [2, 3, 4, 6, 10, 18, 34] {
        for stages in [2, 3] {
            let reward = if stages == 3 { 1.0 } else { 0.0 };
            let found = numbers(
                QUEUES,
                &[
                    format!("trainer.async_off_policy_steps={}", credits - 1),
                    spread("sample", 1.0, "exponential"),
                    spread("reward", reward, "exponential"),
                    spread("forward_backward", 1.0, "exponential"),
                ],
            );
            let theory = f64::from(credits) / f64::from(credits + stages - 1);
            let busy = f64_of(&found, "training_share");
            assert!((busy - theory).abs() < 0.03, "{credits} credits, {stages} stages: {busy}, not {theory}");
            assert!((1.0 / f64_of(&found, "step_s") - theory).abs() < 0.03, "{found}");
        }
    }
}

#[test]
fn a_trainer_that_is_slower_by_a_third_hardly_waits_with_sixteen_credits() {
    for (groups, off_policy) in [(1, 15), (4, 3)] {
        // 0.77 of the trainer's time in both other stages, on as many places as a group has members.
        let each = 0.77 / f64::from(groups);
        let found = numbers(
            QUEUES,
            &[
                format!("trainer.groups_per_batch={groups}"),
                format!("trainer.async_off_policy_steps={off_policy}"),
                format!("trainer.max_staleness={}", 4 * off_policy),
                "trainer.rollouts_per_example=8".into(),
                "simulate.sampling_slots=8".into(),
                "scorer.workers=8".into(),
                "simulate.steps=5000".into(),
                spread("sample", each, "lognormal"),
                spread("reward", each, "lognormal"),
                "simulate.forward_backward=1".into(),
            ],
        );
        assert_eq!(found["bound_cause"], "training");
        let efficiency = f64_of(&found, "efficiency");
        assert!((0.97..=1.001).contains(&efficiency), "{groups} groups: {found}");
    }
}

/// Passes without the rollouts that have no reward are shorter, and of a few random passes the mean is another one.
#[test]
fn the_bound_on_training_is_of_the_passes_that_were_made() {
    for more in [
        &["simulate.missing=0.1"][..],
        &["simulate.forward_backward={ mean = 10, spread = \"exponential\" }", "simulate.steps=60"],
    ] {
        let sets: Vec<String> = more.iter().map(|set| (*set).to_owned()).collect();
        let found = numbers(TAILS, &[&["simulate.forward_backward=5".to_owned()], &sets[..]].concat());
        assert_eq!(found["bound_cause"], "training", "{found}");
        assert!((0.97..=1.001).contains(&f64_of(&found, "efficiency")), "{found}");
    }
}

/// A group holds its credit while its own minibatch and those behind it are trained, and not those before it.
#[test]
fn the_bound_of_the_credits_holds_with_minibatches() {
    let sets = ["async_off_policy_steps=0", "stream_minibatches=8"].map(|set| format!("trainer.{set}"));
    let found = numbers(TAILS, &[&sets[..], &["simulate.forward_backward=4".into()]].concat());
    assert_eq!(found["bound_cause"], "credits", "{found}");
    assert!((0.7..=1.01).contains(&f64_of(&found, "efficiency")), "{found}");
}

#[test]
fn steps_take_the_time_of_the_samplers_places_where_these_are_scarce() {
    for slots in [8, 16, 32] {
        let found = numbers(
            TAILS,
            &[
                "simulate.steps=1000".into(),
                format!("simulate.sampling_slots={slots}"),
                "trainer.max_staleness=20".into(),
            ],
        );
        // 64 samples a step of 1 s, three in a hundred of which take six times as long.
        let law = 64.0 * (1.0 + 0.03 * 5.0) / f64::from(slots);
        let step = f64_of(&found, "step_s");
        assert!((step / law - 1.0).abs() < 0.02, "{slots} places: {step} s, not {law} s");
    }
}

#[test]
fn the_default_bound_on_staleness_costs_at_most_three_percent() {
    let heavy =
        "sample={ mean = 1, spread = \"lognormal\", sigma = 1.0, tail_share = 0.05, tail_factor = 15 }";
    for off_policy in [1, 2, 4] {
        for sample in [None, Some(heavy)] {
            let sets = [format!("trainer.async_off_policy_steps={off_policy}"), "simulate.steps=1000".into()];
            let sets: Vec<String> =
                sets.into_iter().chain(sample.map(|sample| format!("simulate.{sample}"))).collect();
            let default = numbers(TAILS, &sets);
            let unbound = numbers(TAILS, &[sets, vec!["trainer.max_staleness=2000".into()]].concat());
            let cost = f64_of(&default, "step_s") / f64_of(&unbound, "step_s");
            assert!(cost <= 1.03, "K = {off_policy}, {sample:?}: {cost}\n{default}\n{unbound}");
            let means = [&default, &unbound].map(|found| f64_of(found, "staleness_mean"));
            assert!((means[0] - means[1]).abs() < 0.1, "the credits set the mean, not the bound: {means:?}");
        }
    }
}

/// By Little's law, 2 K + 1 = 3 batches under way are 1.5 times as fast as K + 1 = 2, and more as the batch that waits for
/// its last group is one of them. A token in flight lies behind by half of its rollout's time on average.
#[test]
fn in_flight_weights_are_faster_by_half_and_the_tokens_of_long_tails_hardly_staler() {
    let heavy = "simulate.sample={ mean = 1, spread = \"lognormal\", sigma = 1.0, tail_share = 0.05, tail_factor = 15 }";
    let sets = ["trainer.async_off_policy_steps=1", "trainer.args.max_new_tokens=8192", heavy];
    let run = |weights: &str| {
        let more = [format!("trainer.weights=\"{weights}\""), "simulate.steps=1000".into()];
        numbers(TAILS, &sets.map(str::to_owned).into_iter().chain(more).collect::<Vec<_>>())
    };
    let [snapshot, in_flight] = ["snapshot", "inflight"].map(run);
    let faster = f64_of(&snapshot, "step_s") / f64_of(&in_flight, "step_s");
    assert!(faster >= 1.5, "{faster}\n{snapshot}\n{in_flight}");
    let [old, new] = [&snapshot, &in_flight].map(|found| f64_of(found, "staleness_token_mean"));
    assert!(new <= 1.2 * old, "{new} and {old}");
    // Little's law again: the staleness of groups is that of the batches under way.
    for (found, mean) in [(&snapshot, 1.0), (&in_flight, 2.0)] {
        assert!((f64_of(found, "staleness_mean") - mean).abs() < 0.1, "{found}");
    }
}

#[test]
fn the_same_seed_gives_the_same_events_and_another_one_others() {
    let dir = tempfile::tempdir().unwrap();
    let faults = ["failures=0.05", "not_finite=0.01", "missing=0.01", "queries=2", "reward=0.2"];
    let loss = "faults=[{ at_s = 20, for_s = 30, what = \"workers\", left = 0.4 }]";
    let delay = "broker_delay={ mean = 0.1, spread = \"exponential\" }";
    for (config, more) in [(TAILS, &[][..]), (WORKERS, &[loss, delay])] {
        let events = |name: &str, seed: &str| {
            let path = dir.path().join(name);
            let sets = faults.iter().chain(more);
            let mut more: Vec<String> =
                sets.flat_map(|set| ["--set".into(), format!("simulate.{set}")]).collect();
            more.extend(["--seed", seed, "--events", path.to_str().unwrap()].map(str::to_owned));
            let (code, _, err) = simulate(dir.path(), config, &more);
            assert_eq!(code, Some(0), "{err}");
            std::fs::read_to_string(path).unwrap()
        };
        let first = events("a", "1");
        let all: Vec<Value> = first.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(all.windows(2).all(|pair| f64_of(&pair[0], "at") <= f64_of(&pair[1], "at")));
        assert_eq!(all.iter().filter(|event| event["event"] == "step").count(), 200);
        assert_eq!(all.iter().any(|event| event["event"] == "redelivered"), !more.is_empty());
        assert_eq!(first, events("b", "1"));
        assert_ne!(first, events("c", "2"));
    }
}

#[test]
fn an_outage_loses_nothing_and_the_ledger_balances_whatever_fails() {
    let quiet = numbers(TAILS, &[]);
    let away = "simulate.faults=[{ at_s = 50, for_s = 500, what = \"away\" }]";
    let found = numbers(TAILS, &[away.into()]);
    assert_eq!(found["groups"], quiet["groups"], "as many groups are opened, and all are trained");
    let longer = f64_of(&found, "virtual_s") - f64_of(&quiet, "virtual_s");
    assert!((longer - 500.0).abs() < 20.0, "{longer} s");

    let rates = ["failures=0.05", "hangs=0.002", "not_finite=0.01", "missing=0.01"];
    let found = numbers(TAILS, &rates.map(|rate| format!("simulate.{rate}")));
    let groups = |key: &str| found["groups"][key].as_u64().unwrap();
    assert_eq!(groups("trained"), 200 * 8);
    assert_eq!(
        groups("opened"),
        groups("trained") + groups("filtered") + groups("dropped") + groups("failed")
    );
    for fault in ["failed", "hung", "not_finite", "missing"] {
        assert!(found["faults"][fault].as_u64().unwrap() > 0, "{fault}: {found}");
    }
}

#[test]
fn steps_take_the_time_of_the_workers_where_these_are_scarce() {
    for workers in [4, 8, 16] {
        let found = numbers(WORKERS, &[format!("simulate.workers={workers}")]);
        let law = 32.0 * 2.0 / f64::from(workers);
        let step = f64_of(&found, "step_s");
        assert!((step / law - 1.0).abs() < 0.02, "{workers} workers: {step} s, not {law} s");
        assert_eq!(found["bound_cause"], "scoring");
        assert!((f64_of(&found["bounds_s"], "scoring") / law - 1.0).abs() < 1e-9, "{found}");
        assert_eq!(found["workers"], workers);
    }
    // Fewer rewards run or wait than there are workers.
    let found = numbers(WORKERS, &["scorer.workers=4".into()]);
    assert!((f64_of(&found["bounds_s"], "scoring") - 16.0).abs() < 1e-9, "{found}");
}

#[test]
fn the_delay_of_the_broker_adds_to_latency_and_not_to_throughput_unless_workers_are_scarce() {
    let step = |sets: &[&str]| {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let found = numbers(WORKERS, &sets);
        assert!(f64_of(&found, "efficiency") <= 1.001, "{found}");
        f64_of(&found, "step_s")
    };
    // On-policy with a worker for each rollout, a step is one sample, one reward and one pass after the other.
    let on_policy = ["trainer.async_off_policy_steps=0", "simulate.workers=32"];
    for (more, seconds) in [
        (&["simulate.queries=0"][..], 3.5),
        (&["simulate.broker_delay=0.5"], 4.5),
        (&["simulate.broker_delay=0.5", "simulate.queries=4", "simulate.query=0.25"], 5.75),
    ] {
        let step = step(&[&on_policy[..], more].concat());
        assert!((step - seconds).abs() < 0.02, "{more:?}: {step} s, not {seconds} s");
    }
    // The trainer is the bottleneck, and enough rollouts are in flight.
    let busy = ["simulate.forward_backward=4", "simulate.workers=64"];
    for delay in ["simulate.broker_delay=0", "simulate.broker_delay=1"] {
        let step = step(&[&busy[..], &[delay]].concat());
        assert!((step / 4.0 - 1.0).abs() < 0.01, "{delay}: {step} s");
    }
    // A worker fetches a job and stores its result before it takes the next.
    let step = step(&["simulate.broker_delay=0.5"]);
    assert!((step / 12.0 - 1.0).abs() < 0.02, "{step} s, not 32 · (2 + 2 · 0.5) / 8");
}

#[test]
fn workers_that_go_lose_no_rollout_and_the_run_recovers() {
    let quiet = numbers(WORKERS, &[]);
    for (left, least, most) in [(0.25, 150.0, 190.0), (0.0, 200.0, 240.0)] {
        let fault = format!("{{ at_s = 52, for_s = 200, what = \"workers\", left = {left} }}");
        let found = numbers(WORKERS, &[format!("simulate.faults=[{fault}]")]);
        assert_eq!(found["groups"], quiet["groups"], "as many groups are opened, and all are trained");
        let redelivered = found["faults"]["redelivered"].as_f64().unwrap();
        assert_eq!(redelivered, 8.0 * (1.0 - left), "the jobs of the slots that went");
        let longer = f64_of(&found, "virtual_s") - f64_of(&quiet, "virtual_s");
        assert!((least..most).contains(&longer), "{left} left: {longer} s");
    }

    // Workers that go again and again make dead letters of jobs that take longer than they stay.
    let fault = |at: u32| format!("{{ at_s = {at}, for_s = 1, what = \"workers\" }}");
    let faults: Vec<String> = (1..100).map(|n| fault(10 * n)).collect();
    let found = numbers(
        WORKERS,
        &[
            format!("simulate.faults=[{}]", faults.join(", ")),
            "simulate.reward={ mean = 1, tail_share = 0.02, tail_factor = 30 }".into(),
            "simulate.steps=50".into(),
            "nats.ack_wait_s=2".into(),
            "nats.max_deliver=3".into(),
            "trainer.on_member_failure=drop".into(),
        ],
    );
    let groups = |key: &str| found["groups"][key].as_u64().unwrap();
    assert_eq!(groups("trained"), 50 * 4);
    assert!(groups("failed") > 0, "{found}");
    assert_eq!(
        groups("opened"),
        groups("trained") + groups("filtered") + groups("dropped") + groups("failed")
    );
}

#[test]
fn a_broker_needs_an_address_only_where_a_run_would_connect() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("workers.toml");
    std::fs::write(&path, WORKERS).unwrap();
    let check = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
        output(command.env_remove("NATS_URL").arg("check").arg(&path).args(more))
    };
    let (code, out, err) = check(&["--offline"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("nats.url: neither it nor NATS_URL is set"), "{out}");
    let (code, _, err) = check(&[]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("`nats.url` is missing"), "{err}");

    let (code, out, err) = simulate(dir.path(), WORKERS, &[]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("workers      8 rewards at a time;"), "{out}");
    assert!(out.contains("limited by scoring (training 0.500 s, sampling 0.000 s, scoring 8.000 s"), "{out}");
}

#[test]
fn steps_that_take_no_time_have_no_rate_and_this_is_reported() {
    let none = ["sample", "reward", "query", "forward_backward", "optim_step", "export", "save"];
    let none: Vec<String> = none.iter().map(|key| format!("simulate.{key}=0")).collect();
    let found = numbers(QUEUES, &[&none[..], &["simulate.steps=50".into()]].concat());
    for key in ["virtual_s", "step_s", "bound_s"] {
        assert_eq!(f64_of(&found, key), 0.0, "{key}: {found}");
    }
    for key in ["samples_per_s", "training_share", "efficiency", "bound_cause"] {
        assert!(found[key].is_null(), "{key}: {found}");
    }
    assert_eq!(found["groups"]["trained"], 50);

    let dir = tempfile::tempdir().unwrap();
    let sets = none.iter().flat_map(|set| ["--set".to_owned(), set.clone()]);
    let (code, out, err) = simulate(dir.path(), QUEUES, &sets.collect::<Vec<_>>());
    assert_eq!(code, Some(0), "{err}");
    for line in [
        "step         0.000 s, – samples/s",
        "efficiency   – (the bound",
        "training     –% of the time",
        "note         the steps took no time",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(!out.contains("limited by") && !out.contains("inf") && !out.contains("NaN"), "{out}");
}

#[test]
fn what_cannot_be_simulated_names_its_key() {
    let dir = tempfile::tempdir().unwrap();
    for (set, words) in [
        ("simulate.sample=-1", "`simulate.sample` is -1 s"),
        ("simulate.smaple=1", "did you mean `sample`?"),
        ("simulate.workers=4", "`simulate.workers` has no effect: set `scorer.transport = \"nats\"` as well"),
        ("simulate.sample={ mean = \"long\" }", "`simulate.sample.mean` is \"long\"; it must be a number"),
    ] {
        let (code, _, err) = simulate(dir.path(), TAILS, &["--set".into(), set.into()]);
        assert_eq!(code, Some(2), "{set}: {err}");
        assert!(err.contains(words), "{set}: {err}");
    }
}
