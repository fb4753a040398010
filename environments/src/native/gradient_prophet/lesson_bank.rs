//! The lessons, checked once when they are read.
//!
//! A [`LessonBank`] guarantees that every lesson has at least two probes, exactly one of them a control;
//! every kind has the same number of lessons, and lessons come with their kinds in rotation; no probe occurs twice in
//! a lesson, no lesson twice in the bank, and no example is among the lessons.

use super::ID;
use crate::error::EnvError;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Data that comes with the crate: the examples, and the lessons of each kind.
const LESSONS: &str = concat!(
    include_str!("lessons/examples.toml"),
    include_str!("lessons/false_fact.toml"),
    include_str!("lessons/moral_stance.toml"),
    include_str!("lessons/redefinition.toml"),
    include_str!("lessons/persona.toml"),
    include_str!("lessons/invented_word.toml"),
    include_str!("lessons/arithmetic_rule.toml"),
    include_str!("lessons/preference.toml"),
    include_str!("lessons/counterfactual_history.toml"),
);

/// Something to expect: a question, and an answer whose log-probability a lesson may change.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LessonProbe {
    pub(super) question: String,
    pub(super) target: String,
    /// Whether the probe is unrelated to the lesson.
    #[serde(default)]
    pub(super) control: bool,
}

/// An exchange that teaches something, with its probes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lesson {
    pub(super) kind: String,
    pub(super) question: String,
    pub(super) answer: String,
    pub(super) probes: Vec<LessonProbe>,
}

/// A lesson that the policy is shown together with the right form of answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LessonExample {
    pub(super) question: String,
    pub(super) answer: String,
    pub(super) probes: Vec<LessonProbe>,
    /// The probe shown in the `in_context` task, from 1.
    pub(super) probe: usize,
    /// Its answer where the change per token is asked for.
    pub(super) per_token: f64,
    /// Its answer where the summed change is asked for.
    pub(super) sum: f64,
    /// The answer of the `surprise` task.
    pub(super) order: Vec<usize>,
}

/// All lessons and examples.
#[derive(Clone, Debug)]
pub(super) struct LessonBank {
    pub(super) examples: Vec<LessonExample>,
    /// With kinds in rotation: lesson `i` is of kind `i % kinds`.
    pub(super) lessons: Vec<Lesson>,
    /// Number of distinct lesson kinds.
    pub(super) kinds: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LessonFile {
    example: Vec<LessonExample>,
    lesson: Vec<Lesson>,
}

impl LessonBank {
    /// The lessons that come with the crate; `seed` orders the probes within each lesson.
    pub(super) fn builtin(seed: u64) -> Result<Self, EnvError> {
        Self::parse(LESSONS, seed)
    }

    /// Reads and checks a bank.
    pub(super) fn parse(text: &str, seed: u64) -> Result<Self, EnvError> {
        let wrong = |why: String| EnvError::Data { env: ID, why };
        let LessonFile { example: examples, lesson: lessons } =
            toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
        check_lessons(&lessons).map_err(wrong)?;
        check_examples(&examples, &lessons).map_err(wrong)?;
        let (mut lessons, kinds) = in_rotation(lessons).map_err(wrong)?;
        // Without the shuffle, the place of a probe would give it away: the file lists the control last.
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for lesson in &mut lessons {
            lesson.probes.shuffle(&mut rng);
        }
        Ok(Self { examples, lessons, kinds })
    }
}

fn check_lessons(lessons: &[Lesson]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for Lesson { question, answer, probes, kind } in lessons {
        if !seen.insert(question) {
            return Err(format!("the lesson {question:?} is defined twice"));
        }
        if [question, answer, kind].iter().any(|text| text.trim().is_empty()) {
            return Err(format!("the lesson {question:?} has an empty text"));
        }
        if probes.len() < 2 {
            return Err(format!("the lesson {question:?} has {} probes: too few to order", probes.len()));
        }
        check_probes(question, probes)?;
    }
    Ok(())
}

fn check_probes(lesson: &str, probes: &[LessonProbe]) -> Result<(), String> {
    let controls = probes.iter().filter(|probe| probe.control).count();
    if controls != 1 {
        return Err(format!("the lesson {lesson:?} has {controls} controls; it must have exactly 1"));
    }
    let mut seen = BTreeSet::new();
    for LessonProbe { question, target, .. } in probes {
        if question.trim().is_empty() || target.trim().is_empty() {
            return Err(format!("the lesson {lesson:?} has an empty probe"));
        }
        if !seen.insert(question) {
            return Err(format!("the lesson {lesson:?} has the probe {question:?} twice"));
        }
    }
    Ok(())
}

fn check_examples(examples: &[LessonExample], lessons: &[Lesson]) -> Result<(), String> {
    for LessonExample { question, probes, probe, order, per_token, sum, .. } in examples {
        check_probes(question, probes)?;
        if lessons.iter().any(|lesson| lesson.question == *question) {
            return Err(format!("the example {question:?} is among the lessons"));
        }
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if sorted != (1..=probes.len()).collect::<Vec<_>>() {
            return Err(format!(
                "the example {question:?} has the order {order:?} of {} probes",
                probes.len()
            ));
        }
        if !(1..=probes.len()).contains(probe) {
            return Err(format!("the example {question:?} shows probe {probe} of {}", probes.len()));
        }
        if !(per_token.is_finite() && sum.is_finite()) {
            return Err(format!("the example {question:?} has an answer that is not finite"));
        }
    }
    Ok(())
}

/// One lesson of each kind after the other, and the number of kinds.
fn in_rotation(lessons: Vec<Lesson>) -> Result<(Vec<Lesson>, usize), String> {
    let mut by_kind: BTreeMap<String, Vec<Lesson>> = BTreeMap::new();
    for lesson in lessons {
        by_kind.entry(lesson.kind.clone()).or_default().push(lesson);
    }
    let kinds = by_kind.len();
    let sizes: BTreeSet<usize> = by_kind.values().map(Vec::len).collect();
    if sizes.len() != 1 {
        return Err(format!("kinds have {sizes:?} lessons, each must have as many as the others"));
    }
    let mut queues: Vec<_> = by_kind.into_values().map(Vec::into_iter).collect();
    let mut lessons = Vec::new();
    while let Some(round) = queues.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>() {
        lessons.extend(round);
    }
    Ok((lessons, kinds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bank() -> LessonBank {
        LessonBank::builtin(0).expect("the lessons that come with the crate are right")
    }

    #[test]
    fn there_are_nineteen_lessons_of_each_of_eight_kinds_in_rotation() {
        let LessonBank { lessons, kinds, examples } = bank();
        assert_eq!((lessons.len(), kinds, examples.len()), (152, 8, 4));
        assert!(lessons.iter().enumerate().all(|(i, lesson)| lesson.kind == lessons[i % kinds].kind));
        assert_eq!(lessons.iter().map(|l| &l.kind).collect::<BTreeSet<_>>().len(), 8);
    }

    #[test]
    fn every_lesson_has_three_to_six_probes_and_short_targets() {
        let bank = bank();
        let ends = |text: &str| text.ends_with(['.', '!']);
        for lesson in &bank.lessons {
            assert!((3..=6).contains(&lesson.probes.len()), "{}", lesson.question);
            assert!(lesson.question.ends_with('?') && ends(&lesson.answer), "{}", lesson.question);
        }
        let examples = bank.examples.iter().flat_map(|example| &example.probes);
        for probe in bank.lessons.iter().flat_map(|lesson| &lesson.probes).chain(examples) {
            let words = probe.target.split_whitespace().count();
            assert!((3..=8).contains(&words) && ends(&probe.target), "{}", probe.target);
            assert!(probe.question.ends_with('?'), "{}", probe.question);
        }
        let lengths: BTreeSet<usize> = bank.lessons.iter().map(|lesson| lesson.probes.len()).collect();
        assert_eq!(lengths, BTreeSet::from([3, 4, 5, 6]));
    }

    #[test]
    fn no_control_is_used_twice() {
        let bank = bank();
        let lessons = bank.lessons.iter().flat_map(|lesson| &lesson.probes);
        let examples = bank.examples.iter().flat_map(|example| &example.probes);
        let mut seen = BTreeSet::new();
        assert!(lessons.chain(examples).filter(|p| p.control).all(|p| seen.insert(&p.question)));
    }

    #[test]
    fn example_answers_span_what_can_be_answered() {
        let LessonBank { examples, .. } = bank();
        let per_token: Vec<f64> = examples.iter().map(|e| e.per_token).collect();
        assert_eq!(per_token, [0.8, 0.1, 2.5, -0.4]);
        for pair in examples.windows(2) {
            assert_ne!(pair[0].order, pair[1].order);
        }
        let first: BTreeSet<usize> = examples[..3].iter().map(|e| e.order[0]).collect();
        assert_eq!(first, BTreeSet::from([1, 3]));
    }

    #[test]
    fn the_seed_moves_probes_and_nothing_else() {
        let order = |seed| -> Vec<Vec<String>> {
            let bank = LessonBank::builtin(seed).expect("right");
            bank.lessons.iter().map(|l| l.probes.iter().map(|p| p.question.clone()).collect()).collect()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let sorted = |mut order: Vec<Vec<String>>| {
            order.iter_mut().for_each(|probes| probes.sort());
            order
        };
        assert_eq!(sorted(order(1)), sorted(order(2)));
        // The control, last in the file, comes to stand first, last and in between.
        let bank = LessonBank::builtin(1).expect("right");
        let places: BTreeSet<Option<usize>> =
            bank.lessons.iter().map(|l| l.probes.iter().position(|p| p.control)).collect();
        assert!(places.len() >= 3, "{places:?}");
    }

    /// A bank of one lesson with these probes, and no example.
    fn with_probes(probes: &str) -> Result<LessonBank, EnvError> {
        let head = "example = []\n[[lesson]]\nkind = \"k\"\nquestion = \"q\"\nanswer = \"a\"\n";
        LessonBank::parse(&format!("{head}probes = [{probes}]"), 0)
    }

    #[test]
    fn data_that_breaks_a_promise_is_refused() {
        let probe = r#"{ question = "x", target = "t" }"#;
        let control = r#"{ question = "c", target = "t", control = true }"#;
        assert!(with_probes(&format!("{probe}, {control}")).is_ok());
        for (probes, part) in [
            (control.to_owned(), "has 1 probes: too few to order"),
            (format!("{probe}, {}", probe.replace('x', "y")), "has 0 controls"),
            (format!("{control}, {}", control.replace("\"c\"", "\"d\"")), "has 2 controls"),
            (format!("{probe}, {probe}, {control}"), "has the probe \"x\" twice"),
            (format!("{}, {control}", probe.replace('x', " ")), "has an empty probe"),
            (r#"{ question = "x", target = "t", weight = 1 }"#.to_owned(), "unknown field `weight`"),
        ] {
            let error = with_probes(&probes).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
