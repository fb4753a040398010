//! Files of JSON lines that only grow during a run.

use anyhow::Context as _;
use minds_core::reward::Metrics;
use serde::Serialize;
use std::collections::BTreeMap;
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

/// Reads the metrics of each line; `null` values are left out.
pub(super) fn rows(folder: &Path, name: &str) -> anyhow::Result<Vec<Metrics>> {
    let text = super::text_of(&folder.join(name))?.unwrap_or_default();
    let rows = whole(&text).lines().enumerate().map(|(n, line)| {
        let row: BTreeMap<String, Option<f64>> =
            serde_json::from_str(line).with_context(|| format!("line {} of {name} is damaged", n + 1))?;
        Ok(row.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
    });
    rows.collect()
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
        append(dir.path(), "evals.jsonl", &json!({ "step": 12, "reward": 0.5, "reward_low": null })).unwrap();
        let last = Metrics::from([("reward".into(), 0.5), ("step".into(), 12.0)]);
        assert_eq!(rows(dir.path(), "evals.jsonl").unwrap().pop(), Some(last));
        fs::write(dir.path().join("evals.jsonl"), "nonsense\n").unwrap();
        let error = keep_until(dir.path(), "evals.jsonl", 15).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("damaged"), "{error}");
    }
}
