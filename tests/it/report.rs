//! The page and the picture of a run folder.

mod damaged;

use crate::command::{Running, config, output, run};
use std::fs;
use std::path::Path;
use std::process::Command;

fn report(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    output(Command::new(env!("CARGO_BIN_EXE_minds-actors")).arg("report").arg(folder).args(args))
}

/// The page, printed.
fn page(folder: &Path) -> String {
    let (code, out, err) = report(folder, &["-o", "-"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("<!doctype html>") && out.ends_with("</html>"), "it is whole: {out:.100}");
    out
}

/// The text between two marks.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no {start}"));
    rest.split_once(end).unwrap_or_else(|| panic!("no {end}")).0
}

const CONFIG: &str = "[env]\nid = \"target_number\"\n[model]\nbase_model = \"tiny-random\"\n[tinker]\nbase_url = \"embedded\"\n";

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("rollouts")).unwrap();
    for (name, text) in [("config.toml", CONFIG)].iter().chain(files) {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

#[test]
fn a_run_becomes_a_self_contained_page_and_a_picture() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(output(&mut run(&config("ci_test.toml"), dir.path(), &["--max-steps", "20"])).0, Some(0));
    let (code, out, err) = report(dir.path(), &[]);
    assert_eq!(code, Some(0), "{err}");
    let path = dir.path().join("report.html");
    assert!(out.contains(&path.display().to_string()), "{out}");
    let text = fs::read_to_string(&path).unwrap();
    for part in
        ["finished: 20 of 20 steps", "plain_letters", "gradient_prophet", "tiny-random", "embedded engine"]
    {
        assert!(text.contains(part), "{part}");
    }
    for outside in ["<script", "http://", "https://", "src=", "url(", "@import", "<link", "<img"] {
        assert!(!text.contains(outside), "{outside}");
    }
    assert!(text.contains("default-src 'none'"), "nor would a browser load anything");
    // Reward, as the rows have it.
    let rows = crate::command::metrics(dir.path());
    let last: Vec<f64> = rows[10..].iter().map(|row| row["env/all/reward/total"]).collect();
    let mean = last.iter().sum::<f64>() / 10.0;
    let error = (last.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / 9.0 / 10.0).sqrt();
    let shown = between(&text, "<span>Reward</span><b>", "</b>");
    let numbers: Vec<f64> = shown.split(" ± ").map(|number| number.parse().unwrap()).collect();
    assert!(
        (numbers[0] - mean).abs() < 1e-3 && (numbers[1] - error).abs() < 1e-3,
        "{shown}: {mean} ± {error}"
    );
    assert!(text.contains("class=\"shade") && !text.contains("class=\"strip\""), "its tokenizer is at hand");
    assert!(between(&text, "id=\"states\"", "</section>").contains("tinker:&#x2f;&#x2f;"), "the states");
    assert!(text.len() < 2_000_000, "{}", text.len());

    // What is there already is ours, and is replaced.
    assert_eq!(report(dir.path(), &[]).0, Some(0));
    let other = dir.path().join("other.html");
    assert_eq!(report(dir.path(), &["-o", other.to_str().unwrap()]).0, Some(0));
    assert!(other.is_file());
    assert_eq!(report(dir.path(), &["--format", "png"]).0, Some(0));
    let picture = fs::read(dir.path().join("report.png")).unwrap();
    // The signature of PNG; width and height of two panels by two of 520 × 270, twice as fine.
    assert_eq!(picture[..8], [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n']);
    let number = |at: usize| u32::from_be_bytes(picture[at..at + 4].try_into().unwrap());
    assert_eq!((number(16), number(20)), (2080, 1080));
    // The run continues in its folder as if there were no report.
    assert_eq!(output(&mut run(&config("ci_test.toml"), dir.path(), &["--max-steps", "21"])).0, Some(0));
}

#[test]
fn a_run_under_way_is_read_and_not_disturbed() {
    let dir = tempfile::tempdir().unwrap();
    let long = ["--max-steps", "1000000", "--set", "trainer.save_every=0"];
    let mut running = Running::start(&mut run(&config("ci_test.toml"), dir.path(), &long));
    running.wait_for("step 3");
    let text = page(dir.path());
    assert!(text.contains("in progress or interrupted"), "{text:.3000}");
    running.signal("-INT");
    assert_eq!(running.end(), Some(0));
    assert!(!page(dir.path()).contains("in progress or interrupted"), "it stopped with a state");
}

fn rollout(step: u64, member: u32, text: &str) -> String {
    let row = serde_json::json!({
        "step": step, "environment": "<b>target</b>", "group": step, "item": 0, "member": member, "policy": 0, "reward": 0.5 - 0.25 * f64::from(member),
        "advantage": -0.25, "metrics": {"<i>error</i>": 1.5, "none": null},
        "prompt": [{"role": "user", "content": "</pre><script>alert(1)</script>"}],
        "turns": [{"text": text, "complete": true, "prompt_tokens": 9, "tokens": [1, 2], "logprobs": [-0.1, -5.0]}],
    });
    format!("{row}\n")
}

#[test]
fn what_models_write_is_escaped_marked_and_cut() {
    let evil = "<img src=x onerror=alert(2)>\u{202e}live\u{0}\u{1b}]0;title\u{7}";
    let metrics = "[\n{\"step\":1,\"env/<b>x</b>/reward/total\":0.5,\"env/all/reward/total\":0.5,\"time/total\":1}\n]\n";
    let poison = serde_json::json!({
        "environment": "e", "item": 7, "group": 1, "member": 0, "policy": 3, "kind": "environment",
        "cause": "<script>alert(3)</script>", "text": ["<svg onload=alert(4)>"],
    });
    let dir = folder(&[
        ("metrics.json", metrics),
        ("rollouts/step_000001.jsonl", &(rollout(1, 0, evil) + &rollout(1, 1, &"long ".repeat(40_000)))),
        ("quarantine.jsonl", &format!("{poison}\n{{\"cut")),
    ]);
    let text = page(dir.path());
    for raw in ["<script", "<img", "<svg onload", "<b>x", "<i>error", "<b>target", "\u{202e}", "\0", "\u{1b}"]
    {
        assert!(!text.contains(raw), "{raw:?}");
    }
    for shown in ["&lt;img", "U+202E", "␀", "␛", "alert(1)", "alert(3)", "alert(4)", "item 7"] {
        assert!(text.contains(shown), "{shown}");
    }
    assert!(text.contains("197,000 characters left out"), "of 200,000, 3000 are shown");
    assert!(text.len() < 300_000, "{}", text.len());
    assert!(text.contains("class=\"strip\""), "these are not the tokens of the text");
    assert!(text.contains("quarantine.jsonl: damaged lines are left out: 2"), "cut off while it was read");
}

#[test]
fn a_damaged_folder_is_shown_as_far_as_it_can_be_read() {
    let dir = folder(&[
        (
            "metrics.json",
            "[\n{\"step\":1,\"env/e/reward/total\":0.25,\"time/total\":2},\n{\"step\":2,\"env/e/rew",
        ),
        (
            "evals.jsonl",
            "{\"step\":0,\"eval/held/reward\":0.125,\"eval/held/reward_low\":0.0625,\"eval/held/reward_high\":0.1875,\"eval/held/episodes\":8,\"eval/held/missing\":1}\nnonsense\n",
        ),
        ("checkpoints.jsonl", "{\"name\":\"0000"),
        ("rollouts/step_000001.jsonl", "{}\n"),
        ("rollouts/step_000001.past.jsonl", "an earlier one\n"),
    ]);
    let (code, out, err) = report(dir.path(), &[]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("note         metrics.json: damaged lines are left out: 3"), "{out}");
    let text = fs::read_to_string(dir.path().join("report.html")).unwrap();
    for part in
        ["metrics.json: damaged", "evals.jsonl: damaged", "checkpoints.jsonl: damaged", "rollouts: damaged"]
    {
        assert!(text.contains(part), "{part}");
    }
    assert!(
        text.contains("0.0625 to 0.1875") && text.contains("<b>0.125</b>"),
        "the evaluation with its interval"
    );

    fs::write(dir.path().join("config.toml"), "[tinker]\napi_key = \"sesame\"\nnew_setting = 1\n").unwrap();
    let text = page(dir.path());
    assert!(
        text.contains("from another version") && text.contains("new_setting = 1") && !text.contains("sesame")
    );
    fs::write(dir.path().join("config.toml"), CONFIG.replace("base_url", "api_key = \"sesame\"\nbase_url"))
        .unwrap();
    let text = page(dir.path());
    assert!(text.contains("embedded engine") && !text.contains("sesame"));
}

#[test]
fn runs_of_no_step_of_one_and_of_a_hundred_thousand_are_shown() {
    for files in [&[][..], &[("metrics.json", "[\n]\n")]] {
        let dir = folder(files);
        assert!(page(dir.path()).contains("no step yet"));
        assert_eq!(report(dir.path(), &["--format", "png"]).0, Some(0));
    }
    let row = |step: u64| {
        let reward = (step % 97) as f64 / 97.0;
        format!(
            "{{\"step\":{step},\"env/all/reward/total\":{reward},\"env/e/reward/total\":{reward},\"optim/entropy\":0.5,\"time/total\":1.5}}"
        )
    };
    let one = folder(&[("metrics.json", &format!("[\n{}\n]\n", row(1)))]);
    assert!(page(one.path()).contains("<b>1.50 s</b>"));
    let rows: Vec<String> = (1..=100_000).map(row).collect();
    let many = folder(&[("metrics.json", &format!("[\n{}\n]\n", rows.join(",\n")))]);
    let text = page(many.path());
    assert!(
        text.contains("100,000 of 100,000 steps") && text.contains("41 h 40 min") && text.len() < 400_000,
        "{}",
        text.len()
    );
}

#[test]
fn a_folder_that_is_not_a_run_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, err) = report(&dir.path().join("none"), &[]);
    assert!(code == Some(2) && err.contains("is not a folder"), "{err}");
    let (code, _, err) = report(dir.path(), &[]);
    assert!(code == Some(2) && err.contains("is not a run folder: it has no config.toml"), "{err}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was written");
    let run = folder(&[]);
    let (code, _, err) = report(run.path(), &["-o", "/no/such/folder/report.html"]);
    assert!(code == Some(1) && err.contains("/no/such/folder/report.html"), "{err}");
}
