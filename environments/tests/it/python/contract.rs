//! What the plain contract promises beyond its first sentence: an object for each rollout, chance that an item decides,
//! rows that rewards see as the package made them.

use super::{Scripted, answers, block_on, options, play, play_group, reward, try_open};
use crate::venv::verifiers;
use minds_core::environment::Environment as _;
use minds_environments::worker::{PythonEnvironment, PythonOptions};
use serde_json::json;
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

fn case(name: &str) -> PythonEnvironment {
    try_open(options("contract", &json!({ "case": name }))).unwrap()
}

fn with(name: &str, change: impl FnOnce(&mut PythonOptions)) -> PythonOptions {
    let mut options = options("contract", &json!({ "case": name }));
    change(&mut options);
    options
}

/// A policy that repeats its prompt.
fn echo() -> Arc<Scripted> {
    Scripted::new(|said, _| said.to_owned())
}

/// The prompt of each of the first items.
fn prompts(env: &PythonEnvironment, items: u64) -> Vec<String> {
    let policy = echo();
    for item in 0..items {
        assert_eq!(reward(&play(env, item, &policy)), 1.0, "item {item}");
    }
    policy.prompts()
}

#[test]
fn a_step_alone_pays_where_there_is_one() {
    let env = case("paid");
    assert_eq!(reward(&answers(&env, 0, &["x"])[0]), 1.0);
    assert_eq!(env.description().rewards, [""; 0], "its rubric is not asked");
}

#[test]
fn closures_over_the_object_see_the_one_of_their_rollout() {
    let env = case("closed");
    for item in 0..4 {
        let found = answers(&env, item, &["x"; 8]);
        assert_eq!(found.iter().map(reward).collect::<Vec<_>>(), [1.0; 8], "item {item}");
    }
}

#[test]
fn an_object_that_cannot_be_set_back_is_loaded_for_each_rollout() {
    let env = case("iterating");
    for item in 0..2 {
        let group: Vec<_> = (0..4).map(|_| echo()).collect();
        let found = block_on(play_group(&env, item, &group));
        assert_eq!(found.iter().map(reward).collect::<Vec<_>>(), [1.0; 4]);
    }
}

/// Five numbers, each from another generator.
fn differ_and_come_back(open: impl Fn() -> PythonEnvironment) {
    let env = open();
    let first = prompts(&env, 20);
    for place in 0..5 {
        let number = |prompt: &String| {
            let (_, numbers) = prompt.split_once("Repeat: ").unwrap();
            numbers.split([' ', '<']).nth(place).unwrap().to_owned()
        };
        assert_eq!(first.iter().map(number).collect::<HashSet<_>>().len(), 20, "generator {place}");
    }
    let group: Vec<_> = (0..8).map(|_| echo()).collect();
    let found = block_on(play_group(&env, 5, &group));
    assert!(found.iter().all(|outcome| reward(outcome) == 1.0));
    assert!(
        group.iter().all(|policy| policy.prompts() == [first[5].clone()]),
        "one task for the whole group"
    );
    // Another process, and other items before.
    let other = open();
    let policy = echo();
    for item in [19, 3, 7] {
        play(&other, item, &policy).unwrap();
    }
    assert_eq!(policy.prompts(), [19, 3, 7].map(|item: usize| first[item].clone()));
}

#[test]
fn items_differ_at_any_depth_and_each_is_the_same_in_every_process_and_group() {
    differ_and_come_back(|| case("nested"));
}

#[test]
fn online_so_they_do_with_numpys_generators() {
    differ_and_come_back(|| {
        let mut options = options("numpy_chance", &json!({}));
        options.python = Some(verifiers());
        try_open(options).unwrap()
    });
}

#[test]
fn unseeded_randomness_is_one_task_per_group_and_reported() {
    let env = case("unsettable");
    let [note] = &env.description().notes[..] else { panic!("{:?}", env.description()) };
    assert!(note.contains("random.SystemRandom"), "{note}");
    let group: Vec<_> = (0..4).map(|_| echo()).collect();
    let found = block_on(play_group(&env, 0, &group));
    assert_eq!(found.iter().map(reward).collect::<Vec<_>>(), [1.0; 4]);
    assert!(group.iter().all(|policy| policy.prompts() == group[0].prompts()));
    assert!(case("nested").description().notes.is_empty());
}

#[test]
fn builders_and_what_they_build_are_given_the_renderer_and_the_clients() {
    let env = case("rendered");
    let found = answers(&env, 0, &["x", "y"]);
    assert_eq!([reward(&found[0]), reward(&found[1])], [1.0, 0.0]);
    assert!(found[0].as_ref().unwrap().opening[0].content.contains("Say x."), "{found:?}");
}

#[test]
fn rewards_see_the_rows_that_the_package_made() {
    let env = case("types");
    assert_eq!(env.items().get(), 14);
    for item in 0..14 {
        // A row that a reward has changed is as it was for the next one.
        let found = answers(&env, item, &["x", "y"]);
        assert_eq!([reward(&found[0]), reward(&found[1])], [1.0, 1.0], "{:?}", env.item(item));
    }
    let shown = env.item(4).info;
    assert_eq!(shown, json!({"used": false, "7": "seven"}), "people are shown a plain form");
}

#[test]
fn rows_of_a_mebibyte_are_loaded_and_held_once() {
    let env = case("heavy");
    assert_eq!(env.items().get(), 300);
    for item in [0, 299] {
        let found = answers(&env, item, &["x"; 8]);
        assert!(found.iter().all(|outcome| (reward(outcome) - 1.0).abs() < 1e-3));
        let held = found[7].as_ref().unwrap().score.metrics["most_held"];
        assert!((300.0..450.0).contains(&held), "{held} MiB");
    }
    let shown: usize = (0..300).map(|item| env.item(item).info.to_string().len()).sum();
    assert!(shown < 300 * 5000, "{shown} bytes are kept to be shown");
}

#[test]
fn every_process_loads_the_same_rows_or_is_refused_by_name() {
    let seeded = || try_open(with("seeded", |options| options.workers = NonZeroUsize::new(2))).unwrap();
    let shown = |env: &PythonEnvironment| (0..50).map(|item| env.item(item).prompt).collect::<Vec<_>>();
    assert_eq!(shown(&seeded()), shown(&seeded()));
    let error = try_open(with("drawn", |options| options.workers = NonZeroUsize::new(2)));
    let error = error.err().unwrap().to_string();
    assert!(error.contains("its rows are not the same whenever it is loaded"), "{error}");
    // A single process has no other to differ from.
    let alone = try_open(with("drawn", |options| options.workers = NonZeroUsize::new(1))).unwrap();
    assert_eq!(reward(&answers(&alone, 0, &["x"])[0]), 1.0);
}
