//! The plain contract, as its text says it.

use super::{Scripted, answers, cause, open, opens_with_what_was_sent, options, play, reward, try_open};
use minds_core::chat::Message;
use minds_core::environment::Environment as _;
use minds_environments::worker::{self, BadReward};
use serde_json::json;

/// Solves "What is a + b?".
fn solve(said: &str) -> String {
    let numbers: Vec<u32> =
        said.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    numbers.iter().sum::<u32>().to_string()
}

#[test]
fn an_observation_is_completed_and_its_step_gives_the_reward() {
    let env = open("observe");
    assert_eq!((&*env.description().kind, &*env.description().class), ("classic", "Sum"));
    let solver = Scripted::new(|said, _| solve(said));
    let right = play(&env, 3, &solver).unwrap();
    assert_eq!(right.score.reward.get(), 1.0);
    assert_eq!(right.score.metrics["reward_coerced"], 0.0);
    let turn = &right.turns[0];
    assert!(turn.complete && turn.completion.tokens.len() == turn.text.len() + 1, "{turn:?}");
    assert_eq!(turn.completion.logprobs[1], -1.0, "logprobs are those of the sampler");
    assert_eq!(turn.prompt, solver.asked.lock().unwrap()[0].prompt, "and so is the prompt");
    opens_with_what_was_sent(&right);
    assert!(right.opening[0].content.starts_with("What is "), "{:?}", right.opening);
    assert_eq!(reward(&play(&env, 3, &Scripted::new(|_, _| "x".into()))), 0.0);
    // Other items are other tasks, and each comes back as it was.
    for item in 0..6 {
        play(&env, item, &solver).unwrap();
    }
    let prompts = solver.prompts();
    assert_eq!(prompts[0], prompts[1 + 3]);
    assert!(prompts[1..].iter().any(|prompt| *prompt != prompts[1]), "{prompts:?}");
}

#[test]
fn the_members_of_a_group_see_one_task_and_arguments_arrive() {
    let env = try_open(options("observe", &json!({"largest": 100000, "mapping": true}))).unwrap();
    let policies: Vec<_> = (0..8).map(|_| Scripted::new(|said, _| solve(said))).collect();
    let found = super::block_on(super::play_group(&env, 9, &policies));
    assert!(found.iter().all(|outcome| reward(outcome) == 1.0));
    assert!(
        found
            .iter()
            .all(|o| o.as_ref().unwrap().turns[0].prompt == found[0].as_ref().unwrap().turns[0].prompt)
    );
    assert!(found[0].as_ref().unwrap().score.metrics["length"] >= 3.0, "two numbers up to 100000");
}

/// Row 0: 1 for the answer + 0.5 for one message + 0.25 · 2. Row 1: 1 + 0.5 - 0.25.
#[test]
fn rows_are_prompts_and_a_rubric_is_summed_with_its_weights() {
    let built = try_open(options("rows", &json!({"built": true}))).unwrap();
    assert_eq!(reward(&answers(&built, 0, &["Paris"])[0]), 2.0);
    let env = open("rows");
    assert_eq!(built.description(), env.description());
    assert_eq!(
        (env.items().get(), &env.description().columns[..]),
        (2, &["answer", "info", "question", "topic"].map(String::from)[..])
    );
    assert_eq!(env.item(0).prompt, [Message::user("Capital of France?")]);
    assert_eq!(env.item(1).prompt, [Message::system("Be brief."), Message::user("2+2?")]);
    assert_eq!(env.item(1).answer.as_deref(), Some("4"));
    let found = answers(&env, 0, &["Paris", "London"]);
    assert_eq!([reward(&found[0]), reward(&found[1])], [2.0, 1.0]);
    let metrics = &found[0].as_ref().unwrap().score.metrics;
    assert_eq!((metrics["exact"], metrics["by_position"], metrics["by_everything"]), (1.0, 1.0, 2.0));
    assert_eq!(reward(&answers(&env, 1, &["4"])[0]), 1.25);
}

#[test]
fn an_episode_of_several_steps_is_one_conversation_and_one_datum() {
    let env = open("steps");
    let found = answers(&env, 5, &["go", "go", "no"]);
    let [first, second, third] = &found[..] else { panic!() };
    let steps = first.as_ref().unwrap().turns.len();
    assert!((2..=4).contains(&steps));
    assert_eq!([reward(first), reward(second), reward(third)], [steps as f32, steps as f32, 0.0]);
    assert_eq!(
        first.as_ref().unwrap().score.metrics["said"],
        steps as f64,
        "the answers of other rollouts are not counted"
    );
    opens_with_what_was_sent(first.as_ref().unwrap());
    assert_eq!(first.as_ref().unwrap().opening.len(), 1, "later messages do not open it");
    let turns = &first.as_ref().unwrap().turns;
    for pair in turns.windows(2) {
        let before = [&pair[0].prompt[..], &pair[0].completion.tokens].concat();
        assert!(pair[1].prompt.starts_with(&before), "a prompt holds the tokens that were sampled before");
    }
}

#[test]
fn a_failed_or_non_finite_reward_is_an_error_unless_it_is_to_count_as_zero() {
    let env = open("faults");
    for word in ["text_reward", "no_reward", "nan", "several_elements"] {
        let found = cause(&answers(&env, 0, &[word])[0]);
        assert!(found.contains("finite number"), "{word}: {found}");
    }
    assert_eq!(reward(&answers(&env, 0, &["nothing"])[0]), 1.0);

    let mut lenient = options("faults", &json!({}));
    lenient.on_bad_reward = BadReward::Zero;
    let env = try_open(lenient).unwrap();
    for word in ["text_reward", "no_reward", "nan", "several_elements", "raising x"] {
        let found = answers(&env, 0, &[word]).remove(0).unwrap();
        assert_eq!((found.score.reward.get(), found.score.metrics["reward_coerced"]), (0.0, 1.0), "{word}");
    }
    assert!(
        cause(&answers(&env, 0, &["exiting"])[0]).contains("SystemExit"),
        "the end of a process is not a reward"
    );
    let unreachable = answers(&env, 0, &["unreachable"]).remove(0).unwrap_err();
    assert!(unreachable.cause.is_unanswered(), "a service is not reward code: {unreachable}");
}

#[test]
fn observe_shows_the_prompt_that_a_rollout_of_the_item_begins_with() {
    let env = open("observe");
    for item in [0, 3, 4] {
        assert_eq!(
            env.item(item).prompt.is_empty(),
            item > 0,
            "only the first prompt is known after loading"
        );
        let shown = env.observe(item).unwrap();
        let played = play(&env, item, &Scripted::new(|_, _| "1".into())).unwrap();
        assert_eq!((shown.index, &shown.prompt[..]), (item, &*played.opening));
    }
    let rows = open("rows");
    assert_eq!(rows.observe(1).unwrap(), rows.item(1));
    let tokens = try_open(options("clients", &json!({}))).unwrap();
    assert_eq!(tokens.observe(2).unwrap().prompt, [Message::user("What?")]);

    let asking = try_open(options("contract", &json!({"case": "asking"}))).unwrap();
    let why = asking.observe(1).unwrap_err().to_string();
    assert!(why.contains("the policy can be queried only during a rollout"), "{why}");
    assert_eq!(reward(&answers(&asking, 1, &["x"])[0]), 1.0, "the process still works");
}

#[test]
fn a_reward_function_that_counts_as_zero_leaves_the_others_unchanged() {
    let mut options = options("contract", &json!({"case": "raising"}));
    let strict = try_open(options.clone()).unwrap();
    let found = cause(&answers(&strict, 0, &["y"])[0]);
    assert!(found.contains("KeyError: 'y'") && found.contains("in raising"), "{found}");

    options.on_bad_reward = BadReward::Zero;
    let score = answers(&try_open(options).unwrap(), 0, &["y"]).remove(0).unwrap().score;
    let told = ["reward_coerced", "raising"].map(|name| score.metrics[name]);
    assert_eq!((score.reward.get(), told), (1.0, [2.0, 0.0]));
}

#[test]
fn a_load_failure_names_the_cause() {
    for (fault, words) in [
        ("raise", &["RuntimeError: no data today", "faults.py", "load_environment"][..]),
        ("exit", &["SystemExit: 4"]),
        ("nothing", &["object has neither `initial_observation` nor a `dataset`"]),
        ("empty", &["neither `initial_observation` nor a `dataset`"]),
    ] {
        let error = try_open(options("faults", &json!({"fault": fault}))).err().unwrap().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{fault}: {error}");
    }
    let mut slow = options("faults", &json!({"fault": "sleep"}));
    slow.load_timeout = std::time::Duration::from_secs(2);
    let error = try_open(slow).err().unwrap().to_string();
    assert!(error.contains("was not loaded within 2 s"), "{error}");

    let mut missing = options("faults", &json!({}));
    for (id, words) in [
        ("./no/such/folder", "there is no folder or file ./no/such/folder"),
        (env!("CARGO_MANIFEST_DIR"), "holds no package"),
        ("target_nunber", "did you mean `target_number`?), and python3 finds no module of that name"),
    ] {
        missing.id = id.into();
        let error = try_open(missing.clone()).err().unwrap().to_string();
        assert!(error.contains(words), "{id}: {error}");
    }
    missing.id = super::package("faults");
    missing.python = Some("/no/such/python".into());
    let error = try_open(missing).err().unwrap().to_string();
    assert!(error.contains("`/no/such/python` cannot be started"), "{error}");
}

#[test]
fn a_virtual_environment_that_is_missing_is_named_with_the_command_that_makes_it() {
    let mut missing = options("faults", &json!({}));
    missing.python = Some(".no_venv/bin/python".into());
    let mut installed = missing.clone();
    installed.id = "installed_nowhere".into();
    let opened = try_open(missing).err().unwrap().to_string();
    let found = worker::find_package(&installed).unwrap_err().to_string();
    for error in [opened, found] {
        assert!(error.contains("; `python3 -m venv .no_venv` makes it"), "{error}");
        assert!(error.contains("`.no_venv/bin/pip install"), "{error}");
    }
}
