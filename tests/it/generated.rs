//! Generated configs: what `check` accepts starts, and what it refuses is refused by every command, in one message.
//!
//! Each config is `ci_test.toml` with four to eight keys set to values drawn from a table: usual ones, the ends of the
//! ranges, pairs that do not go together, and values of a wrong type or range.

use crate::command::{config, output};
use minds_core::random::seeded_rng;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Keys with values that a run might have, and with values that none may have.
const KEYS: &[(&str, &[&str], &[&str])] = &[
    ("trainer.rollouts_per_example", &["1", "2", "4"], &["0", "-1", "two"]),
    ("trainer.groups_per_batch", &["1", "2", "3"], &["0", "1.5"]),
    ("trainer.async_off_policy_steps", &["0", "1", "2"], &["-1", "1.5"]),
    ("trainer.max_staleness", &["0", "1", "2", "20"], &["-1"]),
    ("trainer.staleness", &["wait", "drop"], &["ignore"]),
    ("trainer.num_substeps", &["1", "2", "3"], &["0"]),
    ("trainer.stream_minibatches", &["1", "2", "3"], &["0"]),
    ("trainer.publish_every", &["1", "2"], &["0"]),
    ("trainer.learning_rate", &["1e-3", "1e-9", "0"], &["-1", "nan", "inf"]),
    ("trainer.loss_fn", &["importance_sampling", "ppo", "cispo"], &["reinforce2", "1"]),
    ("trainer.training_rank", &["1", "8"], &["0", "4096"]),
    ("trainer.advantage", &["group_mean", "group_std", "none"], &["best"]),
    ("trainer.on_member_failure", &["survivors", "retry", "drop"], &["panic"]),
    ("trainer.min_members", &["1", "2", "4"], &["0"]),
    ("trainer.constant_groups", &["keep", "drop", "replace"], &["burn"]),
    ("trainer.kl_penalty_coef", &["0", "0.1"], &["-1"]),
    ("trainer.save_every", &["0", "1", "2"], &["-2"]),
    ("trainer.keep_states", &["0", "2", "3"], &["1"]),
    ("trainer.eval_every", &["0", "1"], &["x"]),
    ("trainer.args.max_new_tokens", &["1", "8", "4096"], &["0"]),
    ("trainer.args.temperature", &["1.0", "0.5", "0"], &["-1"]),
    ("trainer.args.top_k", &["5"], &["0", "-3"]),
    ("trainer.args.top_p", &["0.9", "1.0"], &["0", "1.5"]),
    ("scorer.workers", &["1", "4"], &["0"]),
    ("scorer.queries_per_step", &["100"], &["0", "-1"]),
    ("run.deadline", &["1h"], &["soon", "-5s"]),
    ("run.give_up_after", &["10s"], &["0.5"]),
    ("tinker.outage", &["10s"], &["never"]),
    ("log.tensorboard", &["true", "false"], &["perhaps"]),
    ("log.rollouts", &["all", "sample", "off"], &["some"]),
    ("log.to", &["[]"], &["[\"tensorbord\"]", "wandb"]),
    ("log.tracker_timeout", &["5s"], &["0.5"]),
    ("optim.grad_clip_norm", &["1.0"], &["-1"]),
    ("optim.weight_decay", &["0.1"], &["-0.1"]),
    ("model.renderer_name", &["role_colon"], &["no_such_renderer"]),
    ("trainer.no_such_key", &[], &["1"]),
];

/// The overrides of the config with this seed. One config in three may have a value that no run may have.
fn overrides(seed: u64) -> BTreeMap<&'static str, &'static str> {
    let mut rng = seeded_rng([0x636f_6e66, seed, 0, 0]);
    let wrong = rng.random_ratio(1, 3);
    let count = rng.random_range(4..=8);
    let keys: Vec<_> = KEYS.sample(&mut rng, count).collect();
    let mut chosen: BTreeMap<_, _> =
        keys.into_iter().filter_map(|(key, right, _)| Some((*key, *right.choose(&mut rng)?))).collect();

    if wrong && let Some((key, _, values)) = KEYS.choose(&mut rng) {
        chosen.extend(values.choose(&mut rng).map(|value| (*key, *value)));
    }
    chosen
}

/// Exit code, output and complaint of a command on the config with these overrides.
fn told(command: &str, extra: &[&str], chosen: &BTreeMap<&str, &str>) -> (Option<i32>, String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    program.arg(command).arg(config("ci_test.toml")).args(extra);
    for (key, value) in chosen {
        program.arg("--set").arg(format!("{key}={value}"));
    }
    program.env_remove("TINKER_BASE_URL").env_remove("TINKER_API_KEY").env_remove("TINKER_CREDENTIAL_CMD");
    output(program.env("MINDS_LOG", "error").env("NO_COLOR", "1"))
}

/// The complaint without its time and without the name of the command's own part.
fn complaint(stderr: &str) -> &str {
    stderr.split_once("ERROR ").map_or(stderr, |(_, text)| text).trim()
}

#[test]
fn what_check_accepts_starts_and_what_it_refuses_every_command_refuses_in_the_same_words() {
    let mut accepted = 0;
    let mut refused = 0;
    for seed in 0..60 {
        let chosen = overrides(seed);
        let case = format!("config {seed}: {chosen:?}");
        let (code, _, stderr) = told("check", &["--offline"], &chosen);
        let (simulated, _, simulated_stderr) = told("simulate", &["--steps", "2"], &chosen);

        if code == Some(0) {
            accepted += 1;
            assert_eq!(simulated, Some(0), "{case}: {simulated_stderr}");
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join("run");
            starts(&folder, &chosen, &case);
            continue;
        }
        refused += 1;
        assert_eq!(code, Some(2), "{case}: {stderr}");
        assert_eq!(stderr.matches("ERROR ").count(), 1, "{case}: one complaint\n{stderr}");
        let named = chosen.keys().any(|key| stderr.contains(key.rsplit('.').next().unwrap()));
        assert!(named, "{case}: no key is named\n{stderr}");
        assert_eq!(simulated, Some(2), "{case}: {simulated_stderr}");
        assert_eq!(complaint(&simulated_stderr), complaint(&stderr), "{case}");
    }
    // Both kinds are many, or the table of keys is of no use.
    assert!(accepted >= 20 && refused >= 10, "{accepted} accepted, {refused} refused");
}

/// A run of one step starts, and ends as it should or, with groups that all are without signal, says so.
fn starts(folder: &Path, chosen: &BTreeMap<&str, &str>, case: &str) {
    let folder = folder.to_str().unwrap();
    let (code, stdout, stderr) = told("run", &["--max-steps", "1", "--output-dir", folder], chosen);
    assert_eq!(code, Some(0), "{case}: {stdout}\n{stderr}");
}
