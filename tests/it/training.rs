//! A run from its first line to its last.

use crate::command::{adapter, checkpoints, config, metrics, output, run, steps};

#[test]
fn every_stage_works_and_the_run_folder_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let strict = ["--set", "trainer.max_staleness=1"];
    let (code, stdout, stderr) = output(&mut run(&config("ci_test.toml"), dir.path(), &strict));
    assert_eq!(code, Some(0), "{stdout}\n{stderr}");
    for part in [
        "embedded engine",
        "tiny-random",
        "plain_letters",
        "gradient_prophet",
        "10 opened",
        "10 trained",
        "overlapped",
    ] {
        assert!(stdout.contains(part), "{part} is missing:\n{stdout}");
    }
    assert_eq!(steps(dir.path()), [1, 2, 3, 4, 5]);
    for row in metrics(dir.path()) {
        assert!(row.values().all(|v| v.is_finite()), "{row:?}");
        assert_eq!(row["env/all/total_episodes"], 8.0);
        assert!(row["async/staleness_max"] <= 1.0, "{row:?}");
    }
    let rollouts = std::fs::read_to_string(dir.path().join("rollouts/step_000003.jsonl")).unwrap();
    assert_eq!(rollouts.lines().count(), 8);
    let names: Vec<_> =
        checkpoints(dir.path()).iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["000002", "000004", "000005-final"]);
}

const INTUITION: &str = r#"
env = { id = "gradient_intuition", args = { inner = "plain_letters" } }
[trainer]
rollouts_per_example = 4
groups_per_batch = 2
total_batches = 3
learning_rate = 0.01
training_rank = 4
save_every = 2
args = { max_new_tokens = 8 }
[shadow]
adapters = 2
[model]
base_model = "tiny-random"
[tinker]
base_url = "embedded"
"#;

#[test]
fn shadows_start_from_every_version_and_leave_nothing_but_checkpoints() {
    for from in ["policy", "base"] {
        let dir = tempfile::tempdir().unwrap();
        let (config, folder) = (dir.path().join("train.toml"), dir.path().join("run"));
        std::fs::write(&config, INTUITION).unwrap();
        let from = format!("shadow.from={from}");
        let train = |steps: &str| output(&mut run(&config, &folder, &["--set", &from, "--max-steps", steps]));
        let (code, stdout, stderr) = train("3");
        assert_eq!(code, Some(0), "{stdout}\n{stderr}");
        let (code, stdout, stderr) = train("4");
        assert_eq!(code, Some(0), "it resumes with the checkpoint's spread: {stdout}\n{stderr}");
        for row in metrics(&folder) {
            assert!(row["shadow/measured"] > 0.0 && row["shadow/service_s"] > 0.0, "{row:?}");
            assert!((0.0..=1.0).contains(&row["shadow/service_share"]), "{row:?}");
            assert!(row["env/all/bonus_of_zero"] > 0.0, "what a constant earns: {row:?}");
        }
        let learnt = |n: usize| {
            let checkpoint = &checkpoints(&folder)[n];
            checkpoint["memories"]["gradient_intuition"]["truths"]["count"].as_f64().unwrap()
        };
        // 32 stand for the assumed spread; then come the truths of 2 × 4 episodes a step.
        assert!(
            learnt(0) >= 32.0 + 16.0 && learnt(2) > learnt(1),
            "{} {} {}",
            learnt(0),
            learnt(1),
            learnt(2)
        );
        let states = std::fs::read_dir(folder.join("weights"))
            .unwrap()
            .flat_map(|run| std::fs::read_dir(run.unwrap().path().join("weights")).into_iter().flatten());
        let mut states: Vec<_> =
            states.map(|state| state.unwrap().file_name().into_string().unwrap()).collect();
        states.sort();
        assert_eq!(states, ["000002", "000003-final", "000004"], "{from}");
    }
}

#[test]
fn training_changes_the_adapter_and_raises_the_reward() {
    let dir = tempfile::tempdir().unwrap();
    // On-policy, the run depends on its seed alone, however busy the machine is.
    let strict = "trainer.async_off_policy_steps=0";
    let extra = ["--max-steps", "40", "--set", "trainer.args.max_new_tokens=16", "--set", strict];
    let (code, stdout, stderr) = output(&mut run(&config("ci_test.toml"), dir.path(), &extra));
    assert_eq!(code, Some(0), "{stdout}\n{stderr}");
    let path = checkpoints(dir.path())[0]["state_path"].as_str().unwrap().to_owned();
    let up = adapter(dir.path(), &path);
    let trained = up.iter().filter(|(name, _)| name.ends_with("lora_B.weight"));
    assert!(trained.clone().count() > 0);
    assert!(
        trained.clone().all(|(_, bytes)| bytes.iter().any(|b| *b != 0)),
        "B starts at zero and must have moved"
    );
    let rewards: Vec<f64> = metrics(dir.path())
        .iter()
        .filter_map(|row| row.get("env/plain_letters/reward/total").copied())
        .collect();
    let mean = |r: &[f64]| r.iter().sum::<f64>() / r.len() as f64;
    let (first, last) = (mean(&rewards[..10]), mean(&rewards[rewards.len() - 10..]));
    assert!(last > first + 0.1, "{first} to {last}: {rewards:?}");
}

#[test]
fn strictly_on_policy_runs_of_one_seed_are_equal() {
    let run_once = |seed: &str| {
        let dir = tempfile::tempdir().unwrap();
        let extra = ["--set", "trainer.async_off_policy_steps=0", "--seed", seed];
        assert_eq!(output(&mut run(&config("ci_test.toml"), dir.path(), &extra)).0, Some(0));
        let rewards: Vec<f64> = metrics(dir.path()).iter().map(|row| row["env/all/reward/total"]).collect();
        let kl: Vec<f64> = metrics(dir.path())
            .iter()
            .filter_map(|row| row.get("optim/kl_sample_train_v2").copied())
            .collect();
        let last = checkpoints(dir.path()).pop().unwrap();
        (rewards, kl, adapter(dir.path(), last["state_path"].as_str().unwrap()))
    };
    let first = run_once("1");
    assert!(first.1.iter().all(|kl| *kl == 0.0), "sampled and trained logprobs differ: {:?}", first.1);
    assert!(first == run_once("1"), "the same seed gave another run");
    assert!(first.2 != run_once("2").2, "another seed gave the same run");
}

#[test]
fn a_finished_run_has_nothing_to_do_and_continues_when_extended() {
    let dir = tempfile::tempdir().unwrap();
    let steps_of = |n: &str| output(&mut run(&config("ci_test.toml"), dir.path(), &["--max-steps", n]));
    assert_eq!(steps_of("2").0, Some(0));
    let (code, stdout, _) = steps_of("2");
    assert_eq!(code, Some(0));
    assert!(stdout.contains("all 2 steps are done"), "{stdout}");
    assert_eq!(steps_of("4").0, Some(0));
    assert_eq!(steps(dir.path()), [1, 2, 3, 4]);
}

#[test]
fn only_the_newest_checkpoints_are_kept_and_the_ledger_balances_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let train = |steps: &str, keep: &str| {
        let sets = ["--set", "trainer.save_every=1", "--max-steps", steps, "--set", keep];
        output(&mut run(&config("ci_test.toml"), dir.path(), &sets))
    };
    let (code, _, stderr) = train("3", "trainer.keep_states=1");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("`trainer.keep_states` is 1; it must be at least 2"), "{stderr}");
    for steps in ["3", "6"] {
        let (code, stdout, stderr) = train(steps, "trainer.keep_states=3");
        assert_eq!(code, Some(0), "{stdout}\n{stderr}");
    }
    let listed = checkpoints(dir.path());
    let names: Vec<&str> = listed.iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["000004", "000005", "000006"]);
    // Two groups a step, over both lives.
    for (line, steps) in listed.iter().zip([4, 5, 6]) {
        let count = |key: &str| line["groups"][key].as_u64().unwrap();
        assert_eq!(count("trained"), 2 * steps);
        assert!(
            (2 * steps..=2 * steps + 4).contains(&count("opened")),
            "no more than four are under way: {line}"
        );
        assert_eq!(count("failed") + count("dropped") + count("filtered"), 0);
    }
    let mut kept = Vec::new();
    for run in std::fs::read_dir(dir.path().join("weights")).unwrap() {
        let states = run.unwrap().path().join("weights");
        kept.extend(std::fs::read_dir(states).into_iter().flatten().map(|e| e.unwrap().file_name()));
    }
    kept.sort();
    assert_eq!(kept, ["000004", "000005", "000006"]);
}
