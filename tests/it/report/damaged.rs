//! Run folders that hold what no run has written: nothing hangs, nothing is lost with it, and keys stay hidden.

use super::{CONFIG, between, folder, page, report};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

fn row(step: u64, reward: f64) -> serde_json::Value {
    serde_json::json!({"step": step, "env/all/reward/total": reward, "env/e/reward/total": reward, "time/total": 1.5})
}

fn metrics(rows: &[serde_json::Value]) -> String {
    let rows: Vec<String> = rows.iter().map(ToString::to_string).collect();
    format!("[\n{}\n]\n", rows.join(",\n"))
}

fn rollout(step: u64) -> String {
    let row = serde_json::json!({
        "step": step, "environment": "e", "group": 0, "item": 0, "member": 0, "policy": 0, "reward": 0.5, "advantage": 0,
        "metrics": {}, "prompt": [], "turns": [],
    });
    format!("{row}\n")
}

/// What the page says of a damaged folder.
fn notes(folder: &Path) -> (String, String) {
    let (code, out, err) = report(folder, &[]);
    assert_eq!(code, Some(0), "{err}");
    let text = fs::read_to_string(folder.join("report.html")).unwrap();
    (out, text)
}

/// 1e308 − (−1e308) overflows, and an axis over such a range would never end.
#[test]
fn numbers_whose_difference_overflows_are_drawn() {
    let rows: Vec<_> = (1..=20)
        .map(|step| {
            let mut row = row(step, if step == 4 { 1e308 } else { 0.5 });
            if step == 10 {
                row["env/all/reward/total"] = (-1e308).into();
                row["env/e/reward/total"] = (-1e308).into();
                row["optim/grad_norm"] = 1e308.into();
                row["env/all/by_group/frac_mixed"] = 1e308.into();
            }
            row
        })
        .collect();
    let evaluations = "{\"step\":1,\"eval/x/reward\":1e308,\"eval/x/episodes\":3}\n{\"step\":2,\"eval/x/reward\":-1e308,\"eval/x/episodes\":3}\n";
    let dir = folder(&[("metrics.json", &metrics(&rows)), ("evals.jsonl", evaluations)]);
    assert!(page(dir.path()).contains("1.0e308"));
    assert_eq!(report(dir.path(), &["--format", "png"]).0, Some(0));
}

#[test]
fn irregular_files_are_left_out_and_reported() {
    let dir = folder(&[("rollouts/step_000002.jsonl", &rollout(2))]);
    let path = |name: &str| dir.path().join(name);
    assert!(Command::new("mkfifo").arg(path("rollouts/step_000001.jsonl")).status().unwrap().success());
    symlink("/dev/zero", path("rollouts/step_000003.jsonl")).unwrap();
    fs::create_dir(path("rollouts/step_000004.jsonl")).unwrap();
    symlink("nowhere", path("rollouts/step_000005.jsonl")).unwrap();
    symlink("/dev/zero", path("metrics.json")).unwrap();
    fs::create_dir(path("evals.jsonl")).unwrap();
    symlink("nowhere", path("checkpoints.jsonl")).unwrap();
    let (out, text) = notes(dir.path());
    for note in [
        "metrics.json is left out: it is not a regular file",
        "evals.jsonl is left out: it is a folder",
        "checkpoints.jsonl is left out: ",
        "rollouts/step_000001.jsonl is left out: it is not a regular file, and 3 more such files",
    ] {
        assert!(out.contains(note), "{note}: {out}");
    }
    assert!(text.contains("evals.jsonl is left out") && text.contains("of all 1 steps on record"));

    // A link to a regular file is one.
    fs::write(path("elsewhere"), metrics(&[row(1, 0.125)])).unwrap();
    fs::remove_file(path("metrics.json")).unwrap();
    symlink("elsewhere", path("metrics.json")).unwrap();
    let text = page(dir.path());
    assert!(!text.contains("metrics.json is left out") && text.contains("<span>Reward</span><b>0.125</b>"));
    fs::remove_dir_all(path("rollouts")).unwrap();
    fs::write(path("rollouts"), "").unwrap();
    assert!(notes(dir.path()).0.contains("rollouts is left out: "));
}

#[test]
fn a_binary_config_is_not_shown_and_the_rest_is() {
    let dir = folder(&[("metrics.json", &metrics(&[row(1, 0.125)]))]);
    fs::write(dir.path().join("config.toml"), [0xff, 0xfe, 0, 1]).unwrap();
    let (out, text) = notes(dir.path());
    assert!(out.contains("config.toml is damaged and not shown"), "{out}");
    assert!(text.contains("<span>Reward</span><b>0.125</b>"));
}

/// As `jq -c .` and `jq .` write it.
#[test]
fn an_array_in_another_layout_loses_no_row() {
    let rows = serde_json::Value::Array((1..=20).map(|step| row(step, 0.125)).collect());
    for text in [rows.to_string(), serde_json::to_string_pretty(&rows).unwrap()] {
        let dir = folder(&[("metrics.json", &text)]);
        let (out, text) = notes(dir.path());
        assert!(!out.contains("note"), "{out}");
        assert!(between(&text, "<span>Steps</span><b>", "</b>").contains("20"), "{text:.3000}");
    }
}

#[test]
fn lines_that_are_too_long_and_names_that_are_too_many_are_left_out_and_counted() {
    let mut rows: Vec<_> = (1..=1000).map(|step| row(step, 0.125)).collect();
    for (n, row) in rows.iter_mut().enumerate() {
        (0..16).for_each(|name| row[format!("env/e/once/{}", 16 * n + name)] = 1.into());
    }
    let mut text = metrics(&rows);
    let long = " ".repeat(5 << 20);
    text.insert_str(2, &format!("{{\"step\":0,{long}\"a\":1}},\n"));
    let dir = folder(&[("metrics.json", &text)]);
    // Four names are those of every row, and 16,000 come once.
    let told =
        format!("{} numbers are left out because their names come after the first 4096", 16_000 - (4096 - 4));
    fs::write(dir.path().join("evals.jsonl"), format!("{{\"step\":1,{long}\"x\":1}}\n{{\"step\":2}}\n"))
        .unwrap();
    let (out, text) = notes(dir.path());
    for note in [&told[..], "metrics.json: lines of more than 4 MiB", "evals.jsonl: lines of more than 4 MiB"]
    {
        assert!(out.contains(note), "{note}: {out}");
    }
    assert!(between(&text, "<span>Reward</span><b>", "</b>").contains("0.125"));
    assert!(text.len() < 1_000_000, "{}", text.len());
}

#[test]
fn no_key_of_any_config_is_shown() {
    let arguments =
        "[env.args]\napi_key = \"sesame\"\nnumbers = 3\n[env.args.judge]\nAUTH_TOKEN = \"sesame\"\n";
    let known = CONFIG.replace("[model]", &format!("{arguments}[model]"));
    let foreign = "[package]\nname = \"else\"\napi_key = \"sesame\"\n[[servers]]\npassword = \"sesame\"\n";
    for (config, shown) in [(&known[..], "numbers = 3"), (foreign, "name = ")] {
        let dir = folder(&[("config.toml", config)]);
        let text = page(dir.path());
        assert!(text.contains(shown) && text.contains('…') && !text.contains("sesame"), "{config}");
        assert_eq!(
            fs::read_to_string(dir.path().join("config.toml")).unwrap(),
            config,
            "a run can resume from it"
        );
    }
}

/// A file may have so few bytes as on a disk that is full.
#[test]
fn a_report_that_cannot_be_written_leaves_the_one_before() {
    let dir = folder(&[("metrics.json", &metrics(&[row(1, 0.125)]))]);
    let path = dir.path().join("report.html");
    fs::write(&path, "before").unwrap();
    let limited = format!(
        "trap '' XFSZ; ulimit -f 1; exec '{}' report '{}'",
        env!("CARGO_BIN_EXE_minds-actors"),
        dir.path().display()
    );
    let (code, _, err) = crate::command::output(Command::new("sh").args(["-c", &limited]));
    assert!(code == Some(1) && err.contains("report.html"), "{err}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn a_report_takes_the_place_of_a_file_and_not_of_a_link_or_a_pipe() {
    let dir = folder(&[("metrics.json", &metrics(&[row(1, 0.125)]))]);
    let (target, link) = (dir.path().join("target.html"), dir.path().join("report.html"));
    fs::write(&target, "before").unwrap();
    fs::set_permissions(&target, Permissions::from_mode(0o640)).unwrap();
    symlink("target.html", &link).unwrap();
    assert_eq!(report(dir.path(), &[]).0, Some(0));
    assert!(link.is_symlink() && fs::read_to_string(&target).unwrap().starts_with("<!doctype html>"));
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(report(dir.path(), &["-o", pipe.to_str().unwrap()]).0, Some(0));
    let got = reader.wait_with_output().unwrap().stdout;
    assert!(got.starts_with(b"<!doctype html>") && got.ends_with(b"</html>"), "{} bytes", got.len());
}
