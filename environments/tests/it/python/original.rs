//! The packages of the original trainer, from a checkout of its repository, of which nothing is here. Rewards equal those
//! of their own functions, called by hand in a process of their own (`tests/original/by_hand.py`).

use super::{answers, try_open};
use crate::venv::{by_hand, original, verifiers_of_the_original};
use minds_core::environment::Environment as _;
use minds_environments::worker::{PythonEnvironment, PythonOptions};
use serde_json::{Value, json};

const ANSWERS: [&str; 10] = [
    "1, 2, 3, 4, 5",
    "It is an apple 1",
    "no digits at all",
    "<think>6 and 5</think>\n\nFINAL ANSWER: 11\nCONFIDENCE: 0.8",
    "11",
    "[0.5]",
    "[3, 1, 2]",
    "NUMBER: 3\nFEELING: flat\nENTROPY: 0.5",
    "PREDICTION: 0.3\nANSWER: 10, 20, 30, 40, 50",
    "PREDICTION: 2.9\nANSWER: a word",
];

fn open(package: &str, args: &Value) -> PythonEnvironment {
    let id = format!("./environments/{package}");
    let mut options = PythonOptions::new(id, args.as_object().unwrap().clone(), 7);
    options.python = Some(verifiers_of_the_original());
    try_open(options).unwrap()
}

#[test]
#[ignore = "needs a checkout of the original: `just original CHECKOUT`"]
fn the_original_packages_get_the_rewards_of_their_own_functions() {
    // Its packages name each other by paths from there.
    std::env::set_current_dir(original()).unwrap();
    let sized = json!({"num_examples": 6, "seed": 3});
    let wrapped =
        json!({"inner_env_id": "./environments/ghost_trace", "alpha": 0.35, "shadow_rank": 8, "seed": 3});
    for (package, args, kind) in [
        ("ghost_trace", &sized, "verifiers"),
        ("self_prediction", &sized, "verifiers"),
        ("entropy_intuition", &sized, "verifiers"),
        ("gradient_prophet", &json!({"seed": 3}), "classic"),
        ("gradient_intuition", &wrapped, "classic"),
    ] {
        let env = open(package, args);
        assert_eq!(env.description().kind, kind, "{package}");
        let mut cases = Vec::new();
        let mut found = Vec::new();
        for item in 0..4 {
            let right = env.item(item).answer.unwrap_or_default();
            let right = format!("FINAL ANSWER: {right}\nCONFIDENCE: 0.9");
            let said: Vec<&str> = ANSWERS.into_iter().chain([&*right]).collect();
            for (answer, outcome) in said.iter().zip(answers(&env, item, &said)) {
                let performance = outcome.unwrap_or_else(|missing| panic!("{package}: {missing}"));
                let told = performance.score.metrics.get("reward_errors").copied().unwrap_or_default();
                assert_eq!(told, 0.0, "{package}: {answer}");
                let row = env.item(item);
                let row = json!({"answer": row.answer, "info": row.info});
                cases.push(json!([package, args, &*performance.opening, answer, row]));
                found.push(f64::from(performance.score.reward.get()));
            }
        }
        let right = by_hand(&cases);
        let differs = |(found, right): (&f64, &f64)| (found - right).abs() > 1e-4 * right.abs().max(1.0);
        for (n, pair) in found.iter().zip(&right).enumerate() {
            assert!(!differs(pair), "{package}: {pair:?} for {}", cases[n]);
        }
        let distinct = right.iter().any(|reward| reward != &right[0]);
        // Nothing sets what the functions of this one look for, so they give 0 to everything.
        assert_eq!(distinct, package != "entropy_intuition", "{package}: {right:?}");
    }
}
