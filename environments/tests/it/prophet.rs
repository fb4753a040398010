//! gradient_prophet as a run uses it.

use crate::support::{Reader, last, line, load, rollout};
use minds_core::chat::Role;
use minds_core::reward::RewardError;
use minds_core::schedule::{Schedule, ScheduleComponent};
use minds_environments::native;
use minds_environments::native::gradient_prophet::{RewardForm, best_constant};
use serde_json::{Map, json};
use std::collections::BTreeSet;

/// A reader that expects every token with logprob -3, and with -1 once the lesson is in its context.
pub fn taught() -> Reader {
    Reader::new()
        .expecting(|prefix, _| if prefix.matches("<|im_start|>user").count() > 1 { -1.0 } else { -3.0 })
}

#[test]
fn a_scripted_episode_by_hand() {
    let env = load("gradient_prophet", json!({}));
    let item = env.item(4);
    // The lesson lifts every token from -3 to -1: the truth is 2 nats per token.
    let score = taught().score(&*env, &item, "[1.0]").expect("scored");
    let metrics: Vec<_> = score.metrics.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(
        metrics,
        [("error", 1.0), ("prediction", 1.0), ("related", 1.0), ("truth", 2.0), ("valid", 1.0)]
    );
    assert_eq!(score.reward.get(), 0.5);
    for (answer, reward) in [("[2]", 1.0), ("[3.0]", 0.5), ("[0]", 0.2), ("[-1]", 0.1), ("two", 0.0)] {
        let score = taught().score(&*env, &item, answer).expect("scored");
        assert!((score.reward.get() - reward).abs() < 1e-6, "{answer}");
    }
}

#[test]
fn the_width_is_the_error_that_is_worth_a_half() {
    let env = load("gradient_prophet", json!({"width": 4.0}));
    let score = taught().score(&*env, &env.item(0), "[6]").expect("scored");
    assert_eq!(score.reward.get(), 0.5);
}

#[test]
fn the_log_form_measures_errors_by_their_ratio() {
    let env = load("gradient_prophet", json!({"reward_form": "log"}));
    let item = env.item(0);
    let truth = 2.0 * line(&item, "Target:").len() as f64;
    let score = taught().score(&*env, &item, &format!("[{}]", (truth.asinh() + 1.0).sinh())).expect("scored");
    assert!((score.reward.get() - 0.5).abs() < 1e-6);
    assert_eq!(score.metrics["truth"], truth);
}

#[test]
fn the_question_matches_the_reward_form() {
    for (form, end) in [
        ("per_token", "How much does the lesson change the log-probability of the target per token?"),
        ("sum", "How much does the lesson change the log-probability of the target?"),
        ("log", "How much does the lesson change the log-probability of the target?"),
    ] {
        let item = load("gradient_prophet", json!({"reward_form": form})).item(0);
        let questions = item.prompt.iter().filter(|m| m.role == Role::User);
        assert!(questions.clone().all(|q| q.content.ends_with(end)), "{form}");
        assert_eq!(questions.count(), 4);
    }
}

#[test]
fn examples_are_earlier_exchanges_whose_answers_span_the_answer_space() {
    let answers = |args| -> Vec<String> {
        let item = load("gradient_prophet", args).item(9);
        assert_eq!(item.prompt[0].role, Role::System);
        let turns = item.prompt[1..].iter().enumerate();
        assert!(turns.clone().all(|(i, m)| (m.role == Role::User) == (i % 2 == 0)));
        turns.filter(|(i, _)| i % 2 == 1).map(|(_, m)| m.content.clone()).collect()
    };
    assert_eq!(answers(json!({})), ["[0.8]", "[0.1]", "[2.5]"]);
    assert_eq!(answers(json!({"shots": 4})), ["[0.8]", "[0.1]", "[2.5]", "[-0.4]"]);
    assert_eq!(answers(json!({"shots": 0})), [""; 0]);
    assert_eq!(answers(json!({"reward_form": "sum"})), ["[5]", "[0.5]", "[14]"]);
    let surprise = json!({"task": "surprise", "shots": 4});
    assert_eq!(answers(surprise), ["[1, 3, 2]", "[3, 1, 2, 4]", "[3, 2, 1]", "[2, 4, 1, 3]"]);
}

#[test]
fn examples_are_never_asked() {
    let env = load("gradient_prophet", json!({"shots": 4}));
    for index in 0..env.items().get() {
        let item = env.item(index);
        let lesson = line(&item, "Lesson:");
        let examples = &item.prompt[..item.prompt.len() - 1];
        assert!(!lesson.is_empty() && examples.iter().all(|m| !m.content.contains(lesson)));
    }
}

#[test]
fn related_probes_and_controls_take_turns_in_a_schedule() {
    let env = load("gradient_prophet", json!({}));
    let (items, strata) = (env.items().get(), env.strata().get());
    let schedule = Schedule::new(5, &[ScheduleComponent { weight: 1.0, items, strata }]).expect("a mixture");
    for position in 0..2 * items {
        let item = env.item(schedule.item(position).item);
        assert_eq!(item.info["related"], json!(position % 2 == 0), "{position}");
    }
}

#[test]
fn kinds_of_lessons_take_turns_in_the_surprise_task() {
    let env = load("gradient_prophet", json!({"task": "surprise"}));
    assert_eq!((env.items().get(), env.strata().get()), (152, 8));
    let kinds: BTreeSet<String> = (0..8).map(|i| env.item(i).info["kind"].to_string()).collect();
    assert_eq!(kinds.len(), 8);
    assert!((0..152).all(|i| env.item(i).info["kind"] == env.item(i % 8).info["kind"]));
}

#[test]
fn items_are_the_same_on_every_call_and_every_cycle() {
    for task in ["in_context", "surprise"] {
        let (env, again) = (
            load("gradient_prophet", json!({"task": task})),
            load("gradient_prophet", json!({"task": task})),
        );
        let items = env.items().get();
        for index in 0..items {
            let item = env.item(index);
            assert_eq!(item, again.item(index));
            assert_eq!(item, env.item(index + items));
            assert_eq!((item.index, last(&item).role), (index, Role::User));
        }
    }
}

#[test]
fn the_seed_orders_the_probes_of_a_lesson() {
    let args = json!({"task": "surprise"});
    let prompt =
        |seed| native::load("gradient_prophet", args.as_object().unwrap(), seed).unwrap().item(3).prompt;
    assert_eq!(prompt(1), prompt(1));
    assert!((2..8).any(|seed| prompt(seed) != prompt(1)));
}

#[test]
fn two_loaded_environments_share_nothing() {
    // A component that got the environment of another one made a whole published run train the wrong task.
    let (a, b) = (load("gradient_prophet", json!({})), load("gradient_prophet", json!({"task": "surprise"})));
    let c = load("target_number", json!({}));
    assert_eq!(
        (a.item(0).info["task"].as_str(), b.item(0).info["task"].as_str()),
        (Some("in_context"), Some("surprise"))
    );
    assert_eq!(c.id(), "target_number");
    assert_ne!(a.item(0).prompt, b.item(0).prompt);
}

#[test]
fn an_argument_without_effect_is_an_error() {
    let args = json!({"task": "surprise", "width": 2.0});
    let error = native::load("gradient_prophet", args.as_object().unwrap(), 0).err().unwrap().to_string();
    assert_eq!(
        error,
        "`width` of `gradient_prophet` has an effect only with `task` = in_context: leave it out, or change that"
    );
    assert!(native::load("gradient_prophet", &Map::new(), 0).is_ok());
}

#[test]
fn an_answer_that_did_not_end_is_not_valid() {
    let env = load("gradient_prophet", json!({}));
    let score = taught().score_rollout(&*env, &env.item(0), &rollout("[2]", false)).expect("scored");
    assert_eq!((score.reward.get(), score.metrics["valid"]), (0.0, 0.0));
}

#[test]
fn a_log_prob_that_is_not_finite_makes_the_reward_missing() {
    let env = load("gradient_prophet", json!({}));
    for lp in [f32::NAN, f32::NEG_INFINITY] {
        let reader = Reader::new().expecting(move |_, _| lp);
        assert!(matches!(reader.score(&*env, &env.item(0), "[1]"), Err(RewardError::NotFinite(_))));
    }
    let env = load("gradient_prophet", json!({"task": "surprise"}));
    let reader = Reader::new().continuing(|_| Ok(vec![(65, f32::NAN)]));
    assert!(matches!(reader.score(&*env, &env.item(0), "[1]"), Err(RewardError::NotFinite(_))));
}

#[test]
fn the_best_constant_is_what_truths_alone_can_earn() {
    // Related probes change by 2.3, controls by 0.4: one constant cannot be right for both.
    let truths = [2.3, 0.4, 2.3, 0.4];
    let best = best_constant(&truths, RewardForm::PerToken, 1.0).expect("there are truths");
    let by_hand = (1.0 + 1.0 / (1.0 + 1.9_f64.powi(2))) / 2.0;
    assert!(best.reward >= by_hand && best.reward < 0.65, "{best:?}, {by_hand}");
}
