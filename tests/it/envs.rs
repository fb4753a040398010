//! The verbs that show an environment and score an answer written by hand.

use crate::command::output;
use serde_json::Value;
use std::process::Command;

fn envs(args: &[&str]) -> (Option<i32>, String, String) {
    output(Command::new(env!("CARGO_BIN_EXE_minds-actors")).arg("envs").args(args))
}

fn scored(args: &[&str]) -> Value {
    let (code, out, err) = envs(&[&["score"], args, &["--model", "tiny-random", "--json"]].concat());
    assert_eq!(code, Some(0), "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn environments_are_listed_and_described() {
    let (code, out, _) = envs(&["list"]);
    assert_eq!(code, Some(0));
    assert!(out.lines().any(|line| line.starts_with("gradient_prophet ")), "{out}");
    let (code, out, _) = envs(&["show", "target_number"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("shots = 3") && out.contains("only with shown = false"), "{out}");
    assert!(out.contains("[user] "), "the first prompt: {out}");
}

#[test]
fn samples_are_the_first_items_of_a_run_with_the_seed() {
    let indices = |seed: &str| -> Vec<u64> {
        let (code, out, err) = envs(&["sample", "gradient_prophet", "-n", "5", "--seed", seed, "--json"]);
        assert_eq!(code, Some(0), "{err}");
        let items: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(items.iter().all(|item| item["prompt"][0]["role"].is_string() && item["info"].is_object()));
        items.iter().map(|item| item["index"].as_u64().unwrap()).collect()
    };
    let seven = indices("7");
    assert_eq!(seven, indices("7"));
    assert_ne!(seven, indices("8"));
    assert_eq!(seven.len(), 5);
}

#[test]
fn samples_show_prompts_that_a_python_package_makes_at_the_start_of_a_rollout() {
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/environments/python/example_classic");
    let (code, out, err) = envs(&["sample", package, "-n", "3"]);
    assert_eq!(code, Some(0), "{err}");
    let prompts: Vec<&str> =
        out.lines().filter(|line| line.starts_with("[user] Spell backwards, letters only: ")).collect();
    assert_eq!(prompts.len(), 3, "{out}");
}

/// 0.2 for the form and 0.8 / (1 + (error / 1.5)²) for the number; the hidden target is 3.
#[test]
fn a_reward_without_queries_is_shown_with_its_numbers() {
    let at = |completion: &str| scored(&["target_number", "--index", "0", "--completion", completion]);
    for (completion, reward) in [("[3]", 1.0), ("[4.5]", 0.6), ("three", 0.0)] {
        let found = at(completion);
        assert!((found["reward"].as_f64().unwrap() - reward).abs() < 1e-6, "{completion}: {found}");
        assert_eq!((&found["reward_error"], &found["queries"]), (&Value::Null, &Value::Array(vec![])));
    }
    assert_eq!((&at("[4.5]")["parse"], &at("three")["parse"]), (&4.5.into(), &Value::Null));
    assert_eq!(at("[4.5]")["metrics"]["error"], 1.5);
}

#[test]
fn a_reward_without_queries_fetches_no_model() {
    let empty = tempfile::tempdir().unwrap();
    for (env, completion, lines) in [
        ("target_number", "three", ["parse    nothing: the answer is not valid", "reward   0"]),
        ("plain_letters", "rain1", ["parse    \"rain1\"", "reward   0.8"]),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
        command.args(["envs", "score", env, "--index", "0", "--completion", completion]);
        let (code, out, err) =
            output(command.args(["--model", "owner/nothing"]).env("MINDS_MODELS", empty.path()));
        assert_eq!(code, Some(0), "{err}");
        assert!(lines.iter().all(|line| out.contains(line)), "{out}");
    }
}

/// The truth is the mean over the target's tokens of logprob after the lesson minus logprob before it, and the reward
/// 1 / (1 + error²): computed here from the queries that are shown.
#[test]
fn a_reward_with_queries_shows_all_that_went_into_it() {
    let found = scored(&["gradient_prophet", "--seed", "3", "--index", "4", "--completion", "[0.5]"]);
    let [prior, posterior] = &found["queries"].as_array().unwrap()[..] else { panic!("{found}") };
    let mean = |query: &Value| {
        let logprobs: Vec<f64> = serde_json::from_value(query["logprobs"].clone()).unwrap();
        logprobs.iter().sum::<f64>() / logprobs.len() as f64
    };
    assert_eq!(prior["target"], posterior["target"]);
    let longer = posterior["prefix"].as_str().unwrap().len() > prior["prefix"].as_str().unwrap().len();
    let truth = if longer { mean(posterior) - mean(prior) } else { mean(prior) - mean(posterior) };
    assert!((found["metrics"]["truth"].as_f64().unwrap() - truth).abs() < 1e-4, "{found}");
    let reward = 1.0 / (1.0 + (0.5 - truth).powi(2));
    assert!((found["reward"].as_f64().unwrap() - reward).abs() < 1e-4, "{found}");
}

/// The truth is what one step on the answer does to the probe; the reward is that of the inner sum, which is right and
/// sure (1), plus 0.3 times what the prediction earns where the error of two standard deviations of 0.9 earns nothing.
#[test]
fn a_reward_that_takes_a_training_step_shows_the_step() {
    let item = |json: &str| serde_json::from_str::<Value>(json).unwrap();
    let (_, out, _) = envs(&["sample", "gradient_intuition", "-n", "1", "--seed", "1", "--json"]);
    let item = item(out.lines().next().unwrap());
    let answer = item["answer"].as_str().unwrap();
    let completion = format!("PREDICTION: 0.25\nANSWER: FINAL ANSWER: {answer}\nCONFIDENCE: 1");
    let index = item["index"].to_string();
    let args = ["gradient_intuition", "--seed", "1", "--index", &index, "--completion", &completion];
    let found = scored(&args);
    assert_eq!(found["reward_error"], Value::Null, "{found}");
    assert_eq!(
        (&found["parse"]["prediction"], &found["parse"]["inner"]["confidence"]),
        (&0.25.into(), &1.0.into())
    );
    let [step] = &found["queries"].as_array().unwrap()[..] else { panic!("{found}") };
    // The renderer of the random model begins an answer with a space.
    assert_eq!(step["step_on"].as_str().unwrap().trim_start(), completion);
    let truth = step["after"].as_f64().unwrap() - step["before"].as_f64().unwrap();
    assert!(truth != 0.0 && (found["metrics"]["truth"].as_f64().unwrap() - truth).abs() < 1e-9, "{found}");
    let reward = 1.0 + 0.3 * (1.0 - (0.25 - truth).abs() / 1.8);
    assert!((found["reward"].as_f64().unwrap() - reward).abs() < 1e-5, "{found}");

    let (code, shown, err) = envs(&[&["score"], &args[..], &["--model", "tiny-random"]].concat());
    assert_eq!(code, Some(0), "{err}");
    for part in
        ["answer   ", "parse    {\"prediction\":0.25", "query    {", "\"after\":", "truth", "reward   1."]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn what_does_not_exist_is_refused_by_name() {
    let score = ["score", "target_number", "--completion", "[1]", "--model", "tiny-random"];
    for (args, words) in [
        (&["show", "gradient_profet"][..], &["gradient_profet", "did you mean"][..]),
        (&["sample", "target_number", "--set", "shot=2"], &["shot", "shots"]),
        (&["sample", "target_number", "--set", "shots=9"], &["shots", "0 to 4"]),
        (&[&score[..], &["--index", "1"]].concat(), &["--index 1", "0 to 0"]),
        (&["score", "target_number", "--index", "0", "--completion", "@none.txt"], &["none.txt"]),
    ] {
        let (code, out, err) = envs(args);
        assert_eq!((code, &*out), (Some(2), ""), "{args:?}");
        assert!(words.iter().all(|word| err.contains(word)), "{args:?}: {err}");
    }
}
