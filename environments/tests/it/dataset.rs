//! Tasks from a data file: what its rows become, and whether verifiers agree with verdicts written by hand.

use crate::support::{Reader, last, load, rollout};
use crate::venv::python;
use minds_core::chat::{Message, Role};
use minds_core::environment::Environment;
use minds_core::reward::RewardError;
use minds_environments::native;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::NamedTempFile;

/// Arguments of a data set of sums that comes with the tests.
pub fn sums() -> Value {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dataset/sums.jsonl");
    json!({"data": data, "prompt": "{{ a }} + {{ b }} = ?", "answer": "{{ a + b }}", "verify": "number", "split": "all"})
}

fn file(lines: &[Value]) -> NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
    for line in lines {
        writeln!(file, "{line}").unwrap();
    }
    file
}

fn with(file: &NamedTempFile, args: Value) -> Value {
    let mut all = json!({"data": file.path(), "prompt": "{{ q }}", "answer": "{{ a }}", "split": "all"});
    for (key, value) in args.as_object().unwrap() {
        all[key] = value.clone();
    }
    all
}

fn refusal(args: Value) -> String {
    let loaded = native::load("dataset", args.as_object().unwrap(), 0);
    loaded.err().expect("refused").to_string()
}

fn prompts(env: &dyn Environment) -> Vec<String> {
    (0..env.items().get()).map(|i| last(&env.item(i)).content.clone()).collect()
}

#[test]
fn a_row_becomes_a_prompt_a_reference_and_the_info_of_its_item() {
    let rows = file(&[json!({"q": "6 * 7", "a": 42, "source": {"page": 3}})]);
    let args =
        json!({"system": "Be brief, {{ source.page }}.", "prompt": "Solve: {{ q }}", "verify": "number"});
    let env = load("dataset", with(&rows, args));
    let item = env.item(0);
    assert_eq!(item.prompt, [Message::system("Be brief, 3."), Message::user("Solve: 6 * 7")]);
    assert_eq!(item.answer.as_deref(), Some("42"));
    assert_eq!(item.info["row"], json!({"q": "6 * 7", "a": 42, "source": {"page": 3}}));
    assert_eq!(item.info["place"], format!("{}:1", rows.path().display()));
    let score = |answer| Reader::new().score(&*env, &item, answer).unwrap().reward.get();
    assert_eq!([score("It is 42."), score("43"), score("none")], [1.0, 0.0, 0.0]);
}

#[test]
fn a_column_may_hold_the_chat() {
    let chat = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "v"},
    ]);
    let rows = file(&[json!({"chat": chat, "a": "x"})]);
    let args = |messages: &str| json!({"data": rows.path(), "messages": messages, "answer": "{{ a }}", "split": "all"});
    let env = load("dataset", args("chat"));
    let roles: Vec<Role> = env.item(0).prompt.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::User]);
    let error = refusal(args("a"));
    assert!(error.contains(":1: the column `a` is a text, not a list of messages"), "{error}");
    let mut both = args("chat");
    both["prompt"] = json!("x");
    assert!(refusal(both).contains("`prompt` of `dataset` has an effect only with no `messages`"));
    for (chat, words) in [
        (json!([]), "has no messages"),
        (
            json!([{"role": "assistant", "content": "a"}]),
            "the last message of the column `chat` is of the assistant",
        ),
        (json!([{"role": "user", "content": ["a"]}]), "message 1 of the column `chat` has no text `content`"),
        (json!([{"role": "tool", "content": "a"}]), "message 1 of the column `chat`"),
    ] {
        let rows = file(&[json!({"chat": chat, "a": "x"})]);
        let error = refusal(json!({"data": rows.path(), "messages": "chat", "answer": "{{ a }}"}));
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_key_and_line() {
    let rows = file(&[json!({"q": "a", "a": "1"}), json!({"q": "b", "answer": "2"})]);
    for (args, words) in [
        (json!({}), ":2: `answer` reads the column `a`, which the row lacks; its columns are `q`, `answer`"),
        (json!({"prompt": "{{ question }}"}), ":1: `prompt` reads the column `question`"),
        (json!({"prompt": "{{ q"}), "`prompt` of `dataset` cannot be used: it is not a valid template"),
        (json!({"prompt": " "}), ":1: the prompt is blank"),
        (
            json!({"answer": "{{ q }}", "verify": "number"}),
            ":1: `answer` is \"a\", which holds nothing that can be read as a number",
        ),
        (json!({"answer": "{{ q }}x", "verify": "choice"}), "neither the letter nor the text of one choice"),
        (json!({"answer": "(", "verify": "regex"}), ":1: `(` is not a valid pattern: unclosed group"),
        (json!({"answer": "{{ q }}", "verify": "json_schema"}), ":1: the schema is not JSON"),
        (
            json!({"answer": "{\"$ref\": \"http://localhost:9/x.json\"}", "verify": "json_schema"}),
            ":1: the schema is not valid: ",
        ),
        (json!({"extract": "box"}), "it must be `whole`, `boxed`, `last_line`, `after:MARKER` or `tag:NAME`"),
        (json!({"tolerance": 1}), "`tolerance` of `dataset` has an effect only with `verify` = number"),
        (
            json!({"verify": "number", "ignore_case": true}),
            "has an effect only with `verify` = exact, contains or regex",
        ),
        (
            json!({"held_out": 0.2}),
            "`held_out` of `dataset` has an effect only with `split` = train or held_out",
        ),
        (json!({"pattern": "("}), "`pattern` of `dataset` has an effect only with `verify` = regex"),
        (
            json!({"verify": "regex", "pattern": "("}),
            "`pattern` of `dataset` cannot be used: `(` is not a valid pattern",
        ),
    ] {
        let error = refusal(with(&rows, args));
        assert!(error.contains(words), "{error}");
    }
    assert!(refusal(json!({})).starts_with("`data` of `dataset` is missing: the file with one row per task"));
    assert!(
        refusal(json!({"data": rows.path()}))
            .starts_with("`prompt` of `dataset` is missing: write a template")
    );
    let no_answer = json!({"data": rows.path(), "prompt": "{{ q }}"});
    assert!(refusal(no_answer).starts_with("`answer` of `dataset` is missing: write a template"));
}

#[test]
fn rows_stay_on_their_side_when_others_are_added_and_no_row_is_on_both() {
    let row = |n: u64| json!({"q": format!("question {n}"), "a": n});
    let side = |file: &NamedTempFile, split: &str| -> BTreeSet<String> {
        let env = load("dataset", with(file, json!({"split": split, "held_out": 0.25})));
        prompts(&*env).into_iter().collect()
    };
    let few = file(&(0..400).map(row).collect::<Vec<_>>());
    let (train, held_out) = (side(&few, "train"), side(&few, "held_out"));
    assert!(train.is_disjoint(&held_out) && train.len() + held_out.len() == 400);
    assert!((70..=130).contains(&held_out.len()), "a quarter of 400 is {}", held_out.len());
    // More rows, in another order, with the columns in another order.
    let many = (0..800).rev().map(|n| json!({"a": n, "q": format!("question {n}")}));
    let many = file(&many.collect::<Vec<_>>());
    assert!(side(&many, "train").is_superset(&train));
    assert!(side(&many, "held_out").is_superset(&held_out));
    let one = file(&[row(0)]);
    let sides = ["train", "held_out"].map(|split| {
        let args = with(&one, json!({"split": split}));
        native::load("dataset", args.as_object().unwrap(), 0).err().map(|error| error.to_string())
    });
    let [error] = &sides.iter().flatten().collect::<Vec<_>>()[..] else { panic!("{sides:?}") };
    assert!(error.contains("0.1 of 1 rows leaves no rows in the split"), "{error}");
}

#[test]
fn a_prompt_that_an_earlier_row_has_is_dropped() {
    let rows = file(&[
        json!({"q": "x", "a": "1"}),
        json!({"q": "x", "a": "2"}),
        json!({"q": "y", "a": "3"}),
        json!({"q": "x", "a": "1"}),
    ]);
    let answers = |args: Value| -> Vec<String> {
        let env = load("dataset", with(&rows, args));
        (0..env.items().get()).map(|i| env.item(i).answer.unwrap()).collect()
    };
    assert_eq!(answers(json!({})), ["1", "3"]);
    assert_eq!(answers(json!({"dedupe": false})), ["1", "2", "3", "1"]);
    assert_eq!(answers(json!({"limit": 1})), ["1"]);
    assert_eq!(answers(json!({"limit": 9})), ["1", "3"]);
}

#[test]
fn a_readable_answer_is_worth_the_format_weight_and_one_that_did_not_end_nothing() {
    let rows = file(&[json!({"q": "x", "a": "7"})]);
    let env = load("dataset", with(&rows, json!({"verify": "number", "format_weight": 0.25})));
    let item = env.item(0);
    for (answer, complete, parts) in [
        ("7", true, [1.0, 1.0, 1.0]),
        ("8", true, [0.25, 1.0, 0.0]),
        ("seven", true, [0.0, 0.0, 0.0]),
        ("7", false, [0.0, 0.0, 0.0]),
    ] {
        let score = Reader::new().score_rollout(&*env, &item, &rollout(answer, complete)).unwrap();
        let found = [f64::from(score.reward.get()), score.metrics["valid"], score.metrics["correct"]];
        assert_eq!(found, parts, "{answer} {complete}");
        assert_eq!(score.metrics.len(), 2);
    }
}

/// One line of a file of labelled answers: a setup for the lines after it, or an answer with its verdict.
#[derive(Debug, serde::Deserialize)]
struct LabelledAnswer {
    args: Option<Value>,
    columns: Option<Value>,
    reference: Option<String>,
    answer: Option<String>,
    repeat: Option<usize>,
    is: String,
}

/// The environment of one row with a reference.
fn of_one_row(setup: &LabelledAnswer) -> Arc<dyn Environment> {
    let mut row = setup.columns.clone().unwrap_or_else(|| json!({}));
    row["reference"] = json!(setup.reference);
    let rows = file(&[row]);
    let args = with(&rows, json!({"prompt": "?", "answer": "{{ reference }}"}));
    let mut args = args.as_object().unwrap().clone();
    args.extend(setup.args.clone().unwrap().as_object().unwrap().clone());
    native::load("dataset", &args, 0).unwrap_or_else(|error| panic!("{setup:?}: {error}"))
}

/// Compares the verdicts on the labelled answers of a verifier with those written by hand, and names those that differ.
fn check_labels(verifier: &str, more: &Value) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dataset");
    let text = fs::read_to_string(folder.join(format!("{verifier}.jsonl"))).unwrap();
    let mut env = None;
    let mut answers = 0;
    let mut wrong = Vec::new();
    for line in text.lines() {
        let mut label: LabelledAnswer = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        if label.is == "setup" {
            let args = label.args.as_mut().unwrap().as_object_mut().unwrap();
            args.extend(more.as_object().unwrap().clone());
            env = Some(of_one_row(&label));
            continue;
        }
        let env = env.as_deref().unwrap();
        let answer = label.answer.unwrap().repeat(label.repeat.unwrap_or(1));
        let score = Reader::new().score(env, &env.item(0), &answer).unwrap();
        let found = match (score.metrics["valid"], score.metrics["correct"]) {
            (1.0, 1.0) => "right",
            (1.0, 0.0) => "wrong",
            (0.0, 0.0) => "nothing",
            other => panic!("{other:?}"),
        };
        assert_eq!(f64::from(score.reward.get()), score.metrics["correct"], "{line}");
        if found != label.is {
            wrong.push(format!("{line}: {found}"));
        }
        answers += 1;
    }
    assert!(answers >= 30, "{verifier} has {answers} answers");
    assert!(wrong.is_empty(), "{verifier}:\n{}", wrong.join("\n"));
}

#[test]
fn every_rule_agrees_with_every_verdict_written_by_hand() {
    for verifier in ["exact", "number", "choice", "regex", "contains", "json_schema"] {
        check_labels(verifier, &json!({}));
    }
}

#[test]
fn programs_are_right_exactly_where_a_person_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.jsonl");
    fs::write(&rows, "{\"a\": \"assert True\"}\n").unwrap();
    let args = json!({ "data": rows, "prompt": "?", "answer": "{{ a }}", "verify": "code", "split": "all" });
    // Not every machine that tests makes namespaces.
    let isolation = match native::load("dataset", args.as_object().unwrap(), 0) {
        Ok(_) => "namespaces",
        Err(error) => {
            assert!(error.to_string().contains("set `isolation = \"limits\"`"), "{error}");
            "limits"
        }
    };
    check_labels("code", &json!({ "isolation": isolation }));
}

#[test]
fn online_math_verify_agrees_with_every_verdict_written_by_hand() {
    let python = python("math-verify-0.9.0", &["math-verify[antlr4_13_2]==0.9.0"]);
    check_labels("math", &json!({"python": python, "timeout_s": 60}));
}

/// An interpreter that stands in for one with math-verify: it hangs, crashes or answers as the answer says.
fn scripted_python(folder: &Path) -> PathBuf {
    let script = "#!/bin/sh\n\
        case \"$*\" in *find_spec*) exit 0;; esac\n\
        while read -r line; do\n\
        case \"$line\" in\n\
        *hang*) exec sleep 1000;;\n\
        *crash*) echo out of luck >&2; exit 3;;\n\
        *noise*) echo noise;;\n\
        *unreadable*) echo '{\"reference\": false, \"read\": \"1\", \"correct\": false}';;\n\
        *) echo '{\"reference\": true, \"read\": \"1\", \"correct\": true}';;\n\
        esac\n\
        done\n";
    let path = folder.join("python");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_crash_or_hang_of_the_math_library_costs_one_rollout() {
    let folder = tempfile::tempdir().unwrap();
    let rows = file(&[json!({"q": "x", "a": "1"})]);
    let args =
        json!({"verify": "math", "python": scripted_python(folder.path()), "timeout_s": 1, "parallel": 1});
    let env = load("dataset", with(&rows, args));
    let item = env.item(0);
    let score = |answer: &str| Reader::new().score(&*env, &item, answer).map(|score| score.reward.get());
    let place = format!("{}:1", rows.path().display());
    assert_eq!(score("1"), Ok(1.0));
    // The process has answered before, so it has one second.
    assert_eq!(score("hang"), Err(RewardError::TimedOut(1)));
    assert_eq!(score("1"), Ok(1.0));
    let crash = RewardError::Environment(format!("{place}: math-verify ended (exit status: 3): out of luck"));
    assert_eq!(score("crash"), Err(crash));
    let Err(RewardError::Environment(why)) = score("noise") else { panic!("it is no answer") };
    assert!(why.contains("math-verify gave an unreadable answer"), "{why}");
    let unreadable =
        RewardError::Environment(format!("{place}: math-verify cannot read the reference \"1\""));
    assert_eq!(score("unreadable"), Err(unreadable));
    assert_eq!(score("1"), Ok(1.0));
    let without = with(&rows, json!({"verify": "math", "python": "/usr/bin/false"}));
    let error = refusal(without);
    assert!(error.contains("`/usr/bin/false -m pip install math-verify`"), "{error}");
    let without = refusal(with(&rows, json!({"verify": "math", "python": "/no/python"})));
    assert!(without.contains("`/no/python` cannot be started"), "{without}");
}
