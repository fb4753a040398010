//! Files of JSON lines that only grow during a run.

use super::bounded_lines::NUMBERS;
use super::reading;
use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

/// Adds one line to a file.
pub(super) fn append(folder: &Path, name: &str, row: &impl Serialize) -> anyhow::Result<()> {
    let line = serde_json::to_string(row).with_context(|| format!("failed to write a line of {name}"))?;
    let file = OpenOptions::new().create(true).append(true).open(folder.join(name));
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.with_context(|| format!("failed to write {name}"))
}

/// The complete lines, without a truncated last one.
pub(super) fn whole(text: &str) -> &str {
    text.rfind('\n').map_or("", |end| &text[..=end])
}

/// Reads all rows of a file; a damaged line is an error that names it.
pub(super) fn read<T: DeserializeOwned>(folder: &Path, name: &str) -> anyhow::Result<Vec<T>> {
    let text = super::text_of(&folder.join(name))?.unwrap_or_default();
    let mut all = Vec::new();
    let damage = reading::rows(text.as_bytes(), NUMBERS, |row| all.push(row))?;
    ensure!(damage.is_none(), "{}", damage.notes(name, NUMBERS).join("; "));
    Ok(all)
}

/// Keeps the lines up to a step; later lines describe weights that will be trained again, and move to
/// `<name>.past_<step>.jsonl`. A truncated last line is removed. Returns whether a line has the step itself.
pub(super) fn keep_until(folder: &Path, name: &str, step: u64) -> anyhow::Result<bool> {
    let path = folder.join(name);
    let Some(text) = super::text_of(&path)? else { return Ok(false) };
    let mut has_step = false;
    let mut kept = String::new();
    let mut past = String::new();
    for (n, line) in whole(&text).split_inclusive('\n').enumerate() {
        let row: serde_json::Value = serde_json::from_str(line)
            .with_context(|| format!("line {} of {} is damaged", n + 1, path.display()))?;
        let at = row["step"].as_u64().with_context(|| format!("line {} of {name} has no `step`", n + 1))?;
        has_step |= at == step;
        if at <= step { kept.push_str(line) } else { past.push_str(line) }
    }
    if !past.is_empty() {
        let stem = name.trim_end_matches(".jsonl");
        super::write_whole(&super::aside(folder, &format!("{stem}.past_{step:06}"), "jsonl"), &past)?;
    }
    if kept.len() < text.len() {
        super::write_whole(&path, &kept)?;
    }
    Ok(has_step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::record::{EvaluatedEnvironment, EvaluationRecord};
    use serde_json::json;
    use std::fs;

    #[test]
    fn lines_past_the_step_move_aside_and_a_cut_one_goes() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(!keep_until(dir.path(), "evals.jsonl", 0).unwrap(), "there is none");
        for step in [0, 10, 20] {
            append(dir.path(), "evals.jsonl", &json!({ "step": step })).unwrap();
        }
        let cut = format!("{}{}", read("evals.jsonl"), r#"{"step":3"#);
        fs::write(dir.path().join("evals.jsonl"), cut).unwrap();
        assert!(keep_until(dir.path(), "evals.jsonl", 10).unwrap());
        assert_eq!(read("evals.jsonl"), "{\"step\":0}\n{\"step\":10}\n");
        assert_eq!(read("evals.past_000010.jsonl"), "{\"step\":20}\n");
        assert!(!keep_until(dir.path(), "evals.jsonl", 15).unwrap());
        let row =
            json!({ "step": 12, "eval/a/reward": 0.5, "eval/a/episodes": 3, "eval/a/reward_low": null });
        append(dir.path(), "evals.jsonl", &row).unwrap();
        let measured = EvaluatedEnvironment {
            reward: Some(0.5),
            rollouts: Some(3.0),
            ..EvaluatedEnvironment::default()
        };
        let last = EvaluationRecord { step: 12, environments: [("a".to_owned(), measured)].into() };
        assert_eq!(super::read(dir.path(), "evals.jsonl").unwrap().pop(), Some(last));
        fs::write(dir.path().join("evals.jsonl"), "nonsense\n").unwrap();
        let error = keep_until(dir.path(), "evals.jsonl", 15).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("damaged"), "{error}");
    }
}
