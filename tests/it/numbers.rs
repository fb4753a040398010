//! The numbers that a run writes down are those that `docs/metrics.md` explains.

use crate::command::{metrics, output, run};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Everything that has numbers of its own is on: gradient steps, a reference, an alarm, a budget, an evaluation, in-flight
/// weights.
const CONFIG: &str = r#"
[[envs]]
id = "gradient_intuition"
args = { inner = "plain_letters" }
[[envs]]
id = "plain_letters"
name = "held"
weight = 0
[trainer]
rollouts_per_example = 4
groups_per_batch = 2
total_batches = 2
learning_rate = 0.01
training_rank = 4
kl_penalty_coef = 0.1
kl_alarm = 1.0
weights = "inflight"
eval_every = 1
args = { max_new_tokens = 8 }
[scorer]
queries_per_step = 10000
[eval]
episodes = 2
samples_per_item = 2
[model]
base_model = "tiny-random"
[tinker]
base_url = "embedded"
"#;

fn text(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The names that the documentation explains.
fn told(file: &str) -> BTreeSet<String> {
    let docs = text("docs/metrics.md");
    let (_, section) = docs.split_once(&format!("## The rows of `{file}`\n")).unwrap();
    let rows = section.split("\n## ").next().unwrap().lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split_once('`').unwrap().0.to_owned()).collect()
}

/// A name as the documentation writes it, where it explains it.
fn as_told(key: &str, told: &BTreeSet<String>) -> Option<String> {
    let general = match key.split('/').collect::<Vec<_>>()[..] {
        [start @ ("env" | "eval"), _, ref rest @ ..] => {
            let (start, rest) = (format!("{start}/<name>/"), rest.join("/"));
            if let Some(k) = rest.strip_prefix("pass@") {
                let end = k.trim_start_matches(|c: char| c.is_ascii_digit());
                return Some(format!("{start}pass@<k>{end}")).filter(|name| told.contains(name));
            }
            // Parts of a reward are documented with each environment, and parts of an inner reward with the inner
            // environment.
            let part = format!("`{}`", rest.strip_prefix("inner_").unwrap_or(&rest));
            let own = format!("`{rest}`");
            let parts = text("environments/README.md");
            match told.contains(&format!("{start}{rest}")) {
                true => format!("{start}{rest}"),
                false if parts.contains(&own) || parts.contains(&part) => format!("{start}<part>"),
                false => return None,
            }
        }
        _ => key.to_owned(),
    };
    told.contains(&general).then_some(general)
}

fn check<'a>(file: &str, keys: impl Iterator<Item = &'a String>, unseen: &[&str]) {
    let told = told(file);
    let mut left = told.clone();
    for key in keys {
        let name =
            as_told(key, &told).unwrap_or_else(|| panic!("docs/metrics.md does not explain {key} of {file}"));
        left.remove(&name);
    }
    assert_eq!(
        left.iter().map(String::as_str).collect::<Vec<_>>(),
        unseen,
        "{file}: explained, and not there"
    );
}

#[test]
fn every_number_that_a_run_writes_is_explained_and_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (config, folder) = (dir.path().join("train.toml"), dir.path().join("run"));
    fs::write(&config, CONFIG).unwrap();
    let (code, _, err) = output(&mut run(&config, &folder, &[]));
    assert_eq!(code, Some(0), "{err}");
    let rows = metrics(&folder);
    // The embedded engine reports the listed metrics of its passes and steps, and bills nothing. The run samples: those
    // that imitate are in `supervised.rs`.
    let elsewhere = [
        "<number>:<rule>",
        "cost/cumulative_usd",
        "cost/step_usd",
        "optim/<number>",
        "tokens/billed/prefill_cached",
        "tokens/billed/prefill_uncached",
        "tokens/billed/sampled",
        "tokens/billed/trained",
        "train_mean_nll",
    ];
    check("metrics.json", rows.iter().flat_map(|row| row.keys()), &elsewhere);
    let evaluations = fs::read_to_string(folder.join("evals.jsonl")).unwrap();
    let rows = evaluations.lines().map(|line| serde_json::from_str(line).unwrap());
    let rows: Vec<serde_json::Map<String, serde_json::Value>> = rows.collect();
    // The rewards of plain_letters have no parts.
    check("evals.jsonl", rows.iter().flat_map(|row| row.keys()), &["eval/<name>/<part>"]);
}
