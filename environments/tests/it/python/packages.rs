//! The verifiers library and packages that others have published, each in a virtual environment that is made once and
//! kept beside the build. Those that take minutes are for `just python-packages`.

use super::{
    Scripted, answers, block_on, cause, opens_with_what_was_sent, package, play, play_group, profile, reward,
    try_open,
};
use crate::venv::{NEW, OLD, echo_tool, must, python, tool_test, verifiers};
use minds_core::chat::Message;
use minds_core::environment::Environment as _;
use minds_core::service::BackendError;
use minds_environments::worker::{BadReward, PythonEnvironment, PythonOptions};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn oldest() -> PathBuf {
    python("verifiers-0.1.14", OLD)
}

fn open(python: &Path, id: &str, args: &Value) -> PythonEnvironment {
    open_with(python, id, args, |_| ())
}

fn open_with(
    python: &Path,
    id: &str,
    args: &Value,
    change: impl FnOnce(&mut PythonOptions),
) -> PythonEnvironment {
    let mut options = PythonOptions::new(id, args.as_object().unwrap().clone(), 7);
    options.python = Some(python.to_owned());
    change(&mut options);
    try_open(options).unwrap()
}

/// A reward function that raises counts as 0, as it does in the library.
fn open_lenient(python: &Path, id: &str, args: &Value) -> PythonEnvironment {
    open_with(python, id, args, |options| options.on_bad_reward = BadReward::Zero)
}

/// The right answers, from the gym itself in a process of its own.
fn right_answers(python: &Path, gym: &str) -> Vec<String> {
    let script = format!(
        "import json, reasoning_gym as g; print(json.dumps([e['answer'] for e in g.create_dataset('{gym}', size=6, seed=3)]))"
    );
    serde_json::from_str(&must(Command::new(python).args(["-c", &script]))).unwrap()
}

fn plays_gym(python: &Path, gym: &str) {
    let env = open(python, &package("gyms"), &json!({ "gym": gym }));
    assert_eq!((&*env.description().kind, env.items().get()), ("verifiers", 4));
    for (item, right) in (0..2).zip(right_answers(python, gym)) {
        let found = answers(&env, item, &[&format!("<answer>{right}</answer>"), "<answer>wrong</answer>"]);
        assert_eq!(reward(&found[0]), 1.0, "{gym} {item}: {right}");
        assert!(reward(&found[1]) <= 0.01, "{gym} {item}");
    }
}

#[test]
fn online_verifiers_0_3_1_runs_a_gym_with_our_tokens() {
    let python = verifiers();
    let env = open(&python, &package("gyms"), &json!({}));
    assert_eq!(env.description().verifiers.as_deref(), Some("0.3.1"));
    let right = right_answers(&python, "chain_sum").remove(0);
    let policy = Scripted::new(move |_, _| format!("<answer>{right}</answer>"));
    let found = play(&env, 0, &policy).unwrap();
    assert_eq!(found.score.reward.get(), 1.0);
    assert_eq!(found.score.metrics["reward_errors"], 0.0);
    assert!(policy.prompts()[0].contains("State the final answer to the following arithmetic problem"));
    let asked = policy.asked.lock().unwrap();
    assert_eq!((asked.len(), found.turns.len()), (1, 1));
    assert_eq!(found.turns[0].prompt, asked[0].prompt);
    opens_with_what_was_sent(&found);
    assert_eq!(found.turns[0].completion.logprobs[2], -2.0);
    assert_eq!(
        asked[0].params.max_tokens,
        profile().sampling.max_tokens,
        "answers are drawn as the run says"
    );
}

#[test]
fn online_tools_are_called_and_the_conversation_is_one_datum() {
    let env = open(&verifiers(), &package("tooled"), &json!({}));
    let policy = Scripted::new(|said, n| match n {
        0 => {
            "I look.\n<tool_call>\n{\"name\":\"look_up\",  \"arguments\": {\"word\": \"rain\"}}\n</tool_call>"
                .into()
        }
        _ => said.split('\n').nth(1).unwrap_or_default().to_owned(),
    });
    let found = play(&env, 0, &policy).unwrap();
    assert_eq!((found.score.reward.get(), found.score.metrics["turns"]), (1.0, 2.0));
    let prompts = policy.prompts();
    assert!(
        prompts[0].contains("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"look_up\""),
        "{}",
        prompts[0]
    );
    assert!(prompts[1].contains("<tool_response>\nwater from clouds\n</tool_response>"), "{}", prompts[1]);
    opens_with_what_was_sent(&found);
    assert!(
        found.opening[0].content.contains("<tools>"),
        "tools are part of what was sent: {:?}",
        found.opening
    );
    // The call comes back exactly as it was sampled, double space and all.
    let [first, second] = &found.turns[..] else { panic!() };
    assert!(second.prompt.starts_with(&[&first.prompt[..], &first.completion.tokens].concat()));
}

#[test]
fn online_members_are_compared_and_errors_are_never_a_reward_of_zero() {
    let env = open_lenient(&verifiers(), &package("grouped"), &json!({}));
    assert!(env.description().group_rewards);
    let found = answers(&env, 0, &["a long answer", "short", "middling", "small"]);
    assert_eq!(found.iter().map(reward).collect::<Vec<_>>(), [0.0, 1.0, 0.0, 1.0]);
    // Every member reports a reward that fails.
    assert!(found.iter().all(|outcome| outcome.as_ref().unwrap().score.metrics["reward_errors"] > 0.0));
    // A member whose model failed is left out of the comparison, and has no reward.
    let broken =
        Scripted::failing(|_, _| Err(BackendError::Unavailable("the engine is being repaired".into())));
    let policies = [Scripted::new(|_, _| "a long answer".into()), broken];
    let found = block_on(play_group(&env, 1, &policies));
    assert_eq!(reward(&found[0]), 1.0);
    assert!(cause(&found[1]).contains("the engine is being repaired"), "{found:?}");

    let strict = open(&verifiers(), &package("grouped"), &json!({"group": false}));
    let found = cause(&answers(&strict, 0, &["x"])[0]);
    for part in ["RuntimeError: no such reward", "grouped.py", "in broken"] {
        assert!(found.contains(part), "{part}: {found}");
    }
    let env = open_lenient(&verifiers(), &package("grouped"), &json!({"group": false}));
    let found = answers(&env, 0, &["x"]).remove(0).unwrap();
    assert_eq!((found.score.reward.get(), found.score.metrics["reward_errors"]), (0.5, 1.0));
    // An answer of nothing but its end is an answer.
    assert_eq!(reward(&answers(&env, 0, &[""])[0]), 0.5);
    // A prompt that the context cannot hold ends the rollout, which the library does not call an error.
    let mut options =
        PythonOptions::new(package("grouped"), json!({"group": false}).as_object().unwrap().clone(), 7);
    options.python = Some(verifiers());
    let small = PythonEnvironment::open(options, super::ModelProfile { context: 10, ..profile() }).unwrap();
    assert!(cause(&answers(&small, 0, &["x"])[0]).contains("maximum context length is 10 tokens"));
}

/// The member that hangs is cancelled at its limit; the others have waited for it and are compared without it.
#[test]
fn online_a_member_that_is_cancelled_costs_only_itself() {
    let env = open_with(&verifiers(), &package("hanging"), &json!({}), |options| {
        options.rollout_timeout = Duration::from_secs(4);
    });
    let found = answers(&env, 0, &["hang", "a long answer", "short"]);
    assert!(cause(&found[0]).contains("did not end within 4 s"), "{found:?}");
    assert_eq!((reward(&found[1]), reward(&found[2])), (0.0, 1.0));
    // A comparison has a limit, too, and when all have passed it nothing is left of it.
    let found = answers(&env, 1, &["compare for ever", "short"]);
    assert!(found.iter().all(|outcome| cause(outcome).contains("did not end within 4 s")), "{found:?}");
    assert_eq!(reward(&answers(&env, 0, &["short"])[0]), 1.0);
}

#[test]
fn online_text_rows_are_accepted_and_non_finite_rewards_reported() {
    let env = open_lenient(&verifiers(), &package("oddities"), &json!({}));
    assert_eq!(env.item(1).prompt, [Message::user("Say a word.")]);
    let found = answers(&env, 1, &["word", "nan", "mapping", "none", "raise"]);
    assert_eq!(reward(&found[0]), 1.0);
    for outcome in &found[1..] {
        let score = &outcome.as_ref().unwrap().score;
        assert_eq!((score.reward.get(), score.metrics["reward_errors"]), (0.0, 1.0), "{found:?}");
    }
    let strict = open(&verifiers(), &package("oddities"), &json!({}));
    let found = answers(&strict, 1, &["nan", "raise"]);
    assert!(cause(&found[0]).contains("it must be a finite number"), "{found:?}");
    assert!(cause(&found[1]).contains("RuntimeError: no such reward"), "{found:?}");
}

/// The scripted reader gives each byte minus a hundredth of its value: 116 and 115 are the last two of "cats".
#[test]
fn online_packages_find_the_policy_where_the_original_trainer_puts_it_and_rows_as_the_library_has_them() {
    let env = open(&verifiers(), &package("handed"), &json!({}));
    for outcome in answers(&env, 1, &["x", "y"]) {
        let score = outcome.unwrap().score;
        assert_eq!((score.metrics["row_is_own"], score.metrics["was_handed"]), (1.0, 1.0));
        assert!((score.metrics["likely"] + 2.31).abs() < 1e-6, "{score:?}");
        assert_eq!(score.metrics["reward_errors"], 0.0);
    }
    let env = open(&verifiers(), &package("handed"), &json!({"group": true}));
    assert_eq!(answers(&env, 0, &["x", "y"]).iter().map(reward).collect::<Vec<_>>(), [1.0; 2]);
}

#[test]
#[ignore = "minutes: `just python-packages`"]
fn five_gyms_get_the_expected_rewards_on_verifiers_0_3_1_and_0_1_14() {
    for python in [verifiers(), oldest()] {
        for gym in ["chain_sum", "word_sorting", "knights_knaves", "mini_sudoku", "letter_counting"] {
            plays_gym(&python, gym);
        }
    }
}

/// The rewards come from the package's own functions, called in a process of their own with a message as 0.1.14 makes
/// it. It is an object, which this code does not accept as a message: as plain text both would get 1.
#[test]
#[ignore = "minutes: `just python-packages`"]
fn stardata_0_1_1_is_scored_by_its_own_checkers() {
    const HAIKU: &str = "An old silent pond\nA frog jumps into the pond\nSplash! Silence again.";
    const LIPOGRAM: &str = "Cold night falls on a road\nSnow is soft and still\nA dog runs past a pond\nWind blows cold \
                            on a hill, and dawn will bring a warm sun to us all";
    let python = oldest();
    let own_reward = |function: &str, rows: &str, text: &str| -> f32 {
        let script = format!(
            "from stardata.envs.constraint_gym import *; from verifiers.types import AssistantMessage; \
             print({function}([AssistantMessage(content={text:?})], info={rows}[0]['info']))"
        );
        must(Command::new(&python).args(["-c", &script])).trim().parse().unwrap()
    };
    let env = open_lenient(&python, "stardata.envs.constraint_gym", &json!({"topics_per_form": 1}));
    assert_eq!((env.description().verifiers.as_deref(), env.items().get()), (Some("0.1.14"), 9));
    let found = answers(&env, 0, &[HAIKU]);
    assert_eq!(reward(&found[0]), own_reward("prosody_reward", "build_dataset(topics_per_form=1)", HAIKU));
    // Its second reward returns a mapping, of which the library makes an error and a 0.
    assert_eq!(found[0].as_ref().unwrap().score.metrics["reward_errors"], 1.0);
    let env = open(&python, &package("lipogram"), &json!({}));
    assert_eq!(env.items().get(), 60);
    let found = answers(&env, 0, &[LIPOGRAM]);
    assert_eq!(reward(&found[0]), own_reward("lipogram_reward", "build_lipogram_dataset()", LIPOGRAM));
    // Published without one of its modules.
    let mut broken = PythonOptions::new("stardata.envs.sokoban_gym", serde_json::Map::new(), 7);
    broken.python = Some(python);
    let error = try_open(broken).err().unwrap().to_string();
    assert!(error.contains("stardata.puzzles"), "{error}");
}

#[test]
#[ignore = "minutes: `just python-packages`"]
fn marble_0_1_0_is_run_by_its_program_on_verifiers_0_4_0() {
    let python = python("verifiers-0.4.0", NEW);
    let env = open(&python, "marble_v1", &json!({}));
    assert_eq!(
        (&*env.description().kind, env.description().verifiers.as_deref()),
        ("verifiers v1", Some("0.4.0"))
    );
    // Every task comes with a layout that is known to score, which is not shown to the model.
    let script = "import itertools, json; from marble_v1.taskset import MarbleConfig, MarbleTaskset; \
                  tasks = MarbleTaskset(MarbleConfig(id='marble-v1')).load(); \
                  print(json.dumps([t.data.solution for t in itertools.islice(tasks, 2)]))";
    let layouts: Vec<Value> =
        serde_json::from_str(&must(Command::new(&python).args(["-c", script]))).unwrap();
    for (item, layout) in (0..2).zip(layouts) {
        let found = answers(&env, item, &[&format!("```json\n{layout}\n```"), "I do not know."]);
        assert_eq!([reward(&found[0]), reward(&found[1])], [1.0, 0.0], "{layout}");
        let performance = found[0].as_ref().unwrap();
        assert_eq!((performance.turns.len(), performance.score.metrics["answered_legally"]), (1, 1.0));
        opens_with_what_was_sent(performance);
    }
}

/// The tool stamps what it is given, and the prompt does not show the stamp: the reward of 1 is for a call that was made.
/// The server of the tool is a process of its own, which imports the task set.
#[test]
#[ignore = "minutes: `just python-packages`"]
fn the_librarys_own_test_of_tools_rewards_a_call_on_verifiers_0_4_0() {
    let python = python("verifiers-0.4.0", NEW);
    let env = open(&python, echo_tool().to_str().unwrap(), &json!({"agent": {"harness": {"id": "null"}}}));
    assert_eq!((&*env.description().class, env.items().get()), ("EchoToolTaskset", 1));
    let calls = Scripted::new(|said, n| {
        match n {
        0 => "<tool_call>\n{\"name\": \"echo_back\", \"arguments\": {\"message\": \"hello world\"}}\n</tool_call>".into(),
        _ => format!("<answer>{}</answer>", said.split('\n').nth(1).unwrap_or_default()),
    }
    });
    let found = play(&env, 0, &calls).unwrap();
    assert_eq!((found.score.reward.get(), found.turns.len()), (1.0, 2));
    assert_eq!(found.turns[1].text, "<answer>hello world [ok-7f3]</answer>");
    let first = &calls.prompts()[0];
    assert!(first.contains("\"name\": \"echo_back\""), "{first}");
    assert!(!first.contains("ok-7f3"), "{first}");
    opens_with_what_was_sent(&found);
    let guesses = Scripted::new(|_, _| "<answer>hello world</answer>".into());
    assert_eq!(reward(&play(&env, 0, &guesses)), 0.0);
}

/// "Call the following tools with arguments of your choice: ['tool_B', 'tool_A']", answered with calls of all of them but
/// the first `left_out`.
fn calls(said: &str, left_out: usize) -> String {
    let named = said.split('\'').filter(|name| name.starts_with("tool_")).skip(left_out);
    named
        .map(|name| format!("<tool_call>{{\"name\":\"{name}\",\"arguments\":{{\"x\":1}}}}</tool_call>"))
        .collect()
}

#[test]
#[ignore = "needs a checkout of the library: `just tool-test CHECKOUT`"]
fn tool_test_rewards_the_named_tools_and_not_fewer() {
    for python in [verifiers(), oldest()] {
        let args = json!({"num_train_examples": 8, "num_eval_examples": 2});
        let env = open(&python, tool_test().to_str().unwrap(), &args);
        let found = (0..8).map(|item| {
            let left_out = item as usize % 2;
            let policy = Scripted::new(move |said, _| calls(said, left_out));
            let found = play(&env, item, &policy).unwrap();
            let prompt = policy.prompts().remove(0);
            assert_eq!(prompt.matches("{\"type\": \"function\"").count(), 4, "{prompt}");
            opens_with_what_was_sent(&found);
            found.score.reward.get()
        });
        assert_eq!(found.collect::<Vec<_>>(), [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    }
}
