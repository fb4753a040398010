//! Runs that a teacher trains, token by token.

use crate::command::{check, metrics, output, run};
use std::fs;
use std::path::{Path, PathBuf};

fn config(folder: &Path, teacher: &str, trainer: &str) -> PathBuf {
    let text = format!(
        "
[env]
id = \"plain_letters\"
[teacher]
{teacher}
[trainer]
rollouts_per_example = 4
groups_per_batch = 4
async_off_policy_steps = 0
training_rank = 8
save_every = 0
args = {{ max_new_tokens = 8 }}
{trainer}
[model]
base_model = \"tiny-random\"
renderer_name = \"role_colon\"
[tinker]
base_url = \"embedded\"
"
    );
    let path = folder.join("config.toml");
    fs::write(&path, text).unwrap();
    path
}

/// The base model with other text in its prompt is another distribution, which the policy comes to have without that text.
#[test]
fn the_policy_comes_to_resemble_a_teacher_with_messages_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = "system = \"aaaa bbbb aaaa bbbb aaaa bbbb\"";
    let config = config(folder.path(), teacher, "total_batches = 60\nlearning_rate = 5e-3");
    let dir = folder.path().join("run");
    let (code, stdout, stderr) = output(&mut run(&config, &dir, &[]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("teacher      tiny-random, which also reads instructions"), "{stdout}");
    let rows = metrics(&dir);
    let mean = |rows: &[_]| -> f64 {
        let of = |row: &crate::command::Row| row["optim/kl_policy_base"];
        rows.iter().map(of).sum::<f64>() / rows.len() as f64
    };
    let before = mean(&rows[..5]);
    let after = mean(&rows[55..]);
    assert!(before > 0.0 && after < before / 2.0, "reverse KL per token: {before} before, {after} after");
    // Rewards are reported and not trained.
    assert!(rows.iter().all(|row| row.contains_key("env/all/reward/total")));
}

/// A teacher that is the policy itself has nothing to teach: its logprobs are those at sampling.
#[test]
fn another_model_of_the_same_weights_teaches_nothing_at_first() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "model = \"tiny-random\"", "total_batches = 1");
    let dir = folder.path().join("run");
    let (code, _, stderr) = output(&mut run(&config, &dir, &[]));
    assert_eq!(code, Some(0), "{stderr}");
    let drift = metrics(&dir)[0]["optim/kl_policy_base"];
    assert!(drift.abs() < 1e-6, "{drift}");
}

#[test]
fn examples_that_cannot_be_read_are_refused_by_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let examples = folder.path().join("examples.jsonl");
    fs::write(&examples, "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a\"}\n").unwrap();
    let teacher = format!("examples = {:?}", examples.display().to_string());
    let config = config(folder.path(), &teacher, "total_batches = 1");
    let (code, _, stderr) = output(&mut check(&config, &["--offline"]));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("teacher.examples") && stderr.contains("examples.jsonl:2:"), "{stderr}");
}
