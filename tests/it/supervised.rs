//! Runs that imitate conversations, and stages of a config.

use crate::command::{Running, adapter, check, checkpoints, metrics, output, run, steps};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The letter that follows each letter, as conversations.
fn data(folder: &Path) -> PathBuf {
    let rows: String = ('a'..='y')
        .map(|letter| {
            let next = char::from(letter as u8 + 1);
            format!("{{\"prompt\": \"after {letter}\", \"completion\": \"{next}\"}}\n")
        })
        .collect();
    let path = folder.join("letters.jsonl");
    fs::write(&path, rows).unwrap();
    path
}

const REST: &str = "
[trainer]
groups_per_batch = 4
learning_rate = 1e-2
training_rank = 4
save_every = 5
[model]
base_model = \"tiny-random\"
renderer_name = \"role_colon\"
[tinker]
base_url = \"embedded\"
";

fn sft(data: &Path, keys: &str) -> String {
    format!("[sft]\ndata = {:?}\n{keys}\n{REST}", data.display().to_string())
}

fn written(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("config.toml");
    fs::write(&path, text).unwrap();
    path
}

/// The adapter of the last checkpoint.
fn last_adapter(dir: &Path) -> Vec<(String, Vec<u8>)> {
    adapter(dir, checkpoints(dir).pop().unwrap()["state_path"].as_str().unwrap())
}

fn evaluations(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("evals.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_supervised_run_learns_its_conversations_and_measures_what_is_held_out() {
    let folder = tempfile::tempdir().unwrap();
    let config = written(folder.path(), &sft(&data(folder.path()), "epochs = 20\nheld_out = 0.2"));
    let dir = folder.path().join("run");
    let (code, stdout, stderr) = output(&mut run(&config, &dir, &[]));
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let rows = metrics(&dir);
    for row in &rows {
        // The service sums the loss by itself; every completion is a letter and the eight characters of its stop.
        let summed = row["loss:sum"] / row["tokens/trained"];
        assert!((row["train_mean_nll"] - summed).abs() < 1e-4, "{row:?}");
        assert_eq!(row["tokens/trained"], 4.0 * 9.0);
        assert!(!row.contains_key("optim/entropy") && !row.contains_key("env/all/reward/total"));
    }
    // 25 rows, of which some are held out, 20 times in batches of 4.
    let held_out = evaluations(&dir)[0]["eval/sft_held_out/episodes"].as_f64().unwrap() as usize;
    assert_eq!(rows.len(), (20 * (25 - held_out)).div_ceil(4));
    assert!((1..13).contains(&held_out), "{held_out}");
    let first = rows[0]["train_mean_nll"];
    let last = rows.last().unwrap()["train_mean_nll"];
    // Each of 259 tokens is about as likely as any other under random weights: ln 259 = 5.56.
    assert!(first > 4.0 && last < first / 3.0, "{first} {last}");
    let measured = evaluations(&dir);
    let nll = |row: &Value| row["eval/sft_held_out/nll"].as_f64().unwrap();
    assert_eq!(measured[0]["step"], 0);
    assert!(nll(&measured[0]) > 4.0 && nll(measured.last().unwrap()) < 3.0, "{measured:?}");
    let reward = measured[0]["eval/sft_held_out/reward"].as_f64().unwrap();
    assert!((nll(&measured[0]) + reward).abs() < 1e-5, "the same number, as a reward of 32 bits");
    assert!(stdout.contains("step 1       nll "), "{stdout}");
}

/// Runs to the end, killed once after this line.
fn killed_and_resumed(config: &Path, dir: &Path, line: &str) {
    let mut running = Running::start(&mut run(config, dir, &[]));
    running.wait_for(line);
    running.signal("-KILL");
    assert_eq!(running.end(), None, "killed");
    let (code, stdout, stderr) = output(&mut run(config, dir, &[]));
    assert_eq!(code, Some(0), "{stdout}{stderr}");
}

#[test]
fn a_supervised_run_that_is_killed_and_resumed_has_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    let config = written(folder.path(), &sft(&data(folder.path()), "epochs = 6"));
    let [whole, killed] = ["whole", "killed"].map(|name| folder.path().join(name));
    assert_eq!(output(&mut run(&config, &whole, &[])).0, Some(0));
    killed_and_resumed(&config, &killed, "saved        step 10");
    assert_eq!(steps(&killed), steps(&whole));
    assert_eq!(last_adapter(&killed), last_adapter(&whole));
}

/// Imitation, then rewards on-policy.
fn staged(folder: &Path) -> PathBuf {
    let data = data(folder);
    let text = format!(
        "{REST}
[[stages]]
name = \"sft\"
sft = {{ data = {:?}, epochs = 3 }}
[[stages]]
name = \"rl\"
env = {{ id = \"plain_letters\" }}
[stages.trainer]
groups_per_batch = 2
rollouts_per_example = 4
total_batches = 12
async_off_policy_steps = 0
args = {{ max_new_tokens = 8 }}
",
        data.display().to_string()
    );
    written(folder, &text)
}

#[test]
fn stages_follow_each_other_and_resume_where_they_were_killed() {
    let folder = tempfile::tempdir().unwrap();
    let config = staged(folder.path());
    let [whole, first, second] = ["whole", "first", "second"].map(|name| folder.path().join(name));
    let (code, stdout, stderr) = output(&mut run(&config, &whole, &[]));
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let lines: Vec<&str> = stdout.lines().filter(|line| line.starts_with("stage ")).collect();
    assert_eq!(lines, ["stage        1 of 2, sft", "stage        2 of 2, rl"]);
    assert!(stdout.contains(&format!("-final of {}", whole.join("1-sft").display())), "{stdout}");
    killed_and_resumed(&config, &first, "saved        step 5");
    // Step 5 of the second stage, whose steps have rewards.
    killed_and_resumed(&config, &second, "step 5       reward");
    for dir in [&first, &second] {
        for stage in ["1-sft", "2-rl"] {
            assert_eq!(last_adapter(&dir.join(stage)), last_adapter(&whole.join(stage)), "{stage}");
        }
    }
    // All is done: the same command does nothing.
    let (code, stdout, _) = output(&mut run(&config, &whole, &[]));
    assert_eq!((code, stdout.matches("steps are done").count()), (Some(0), 2), "{stdout}");
}

#[test]
fn what_does_not_go_with_imitation_is_refused_by_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let good = data(folder.path());
    let broken = folder.path().join("broken.jsonl");
    fs::write(&broken, "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a\"}\n").unwrap();
    for (text, problem) in [
        (sft(&good, "epochs = 2\n[trainer2]"), "there is no table [trainer2]"),
        (sft(&folder.path().join("none.jsonl"), ""), "failed to open"),
        (sft(&broken, ""), "broken.jsonl:2: the row needs `messages`, or `prompt` and `completion`"),
        (sft(&good, "train_on = \"all\""), "last_assistant, all_assistant, completion"),
        (sft(&good, "held_out = 1.0"), "`sft.held_out` is 1; it must lie between 0 and 0.9"),
        (
            sft(&good, "epochs = 2").replace("[trainer]", "[trainer]\ntotal_batches = 3"),
            "`sft.epochs` cannot be combined",
        ),
        (sft(&good, "scorer.transport = \"nats\"").replace("scorer", "x"), "there is no key `x`"),
        (format!("scorer.transport = \"nats\"\n{}", sft(&good, "")), "nothing to hand to workers"),
    ] {
        let config = written(folder.path(), &text);
        let (code, _, stderr) = output(&mut check(&config, &["--offline"]));
        assert_eq!(code, Some(2), "{text}: {stderr}");
        assert!(stderr.contains(problem), "{problem}: {stderr}");
    }
    let config = staged(folder.path());
    let (code, stdout, stderr) = output(&mut check(&config, &["--offline"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout.matches("no errors found").count(), 2, "{stdout}");
}
