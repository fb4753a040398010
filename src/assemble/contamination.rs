//! Whether what is evaluated is also trained.

use minds_core::chat::Message;
use minds_core::environment::Environment;
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;

/// Most items of an environment that are compared, so that a run starts at once.
const MOST: u64 = 100_000;

/// An environment of a run.
pub struct ComparedEnvironment<'a> {
    /// Name of the environment in metrics.
    pub name: &'a str,
    /// Whether it is trained; otherwise it is evaluated.
    pub trained: bool,
    /// The environment with its items.
    pub environment: &'a dyn Environment,
}

/// Counts the prompts of each evaluated environment that are also trained, and returns a note if there are any. Case and
/// whitespace make no difference. The first 100,000 items of each environment are compared.
#[must_use]
pub fn contamination(all: &[ComparedEnvironment<'_>]) -> Vec<String> {
    if all.iter().all(|one| one.trained) {
        return Vec::new();
    }
    let trained: HashSet<[u8; 32]> =
        all.iter().filter(|one| one.trained).flat_map(|one| digests(one.environment)).collect();
    let note = |one: &ComparedEnvironment<'_>| {
        let own: HashSet<[u8; 32]> = digests(one.environment).collect();
        let seen = own.intersection(&trained).count();
        (seen > 0).then(|| {
            format!(
                "{}: {seen} of its {} prompts are trained, too, so that eval/{} says little about new ones",
                one.name,
                own.len(),
                one.name
            )
        })
    };
    all.iter().filter(|one| !one.trained).filter_map(note).collect()
}

fn digests(environment: &dyn Environment) -> impl Iterator<Item = [u8; 32]> {
    let prompts = (0..environment.items().get().min(MOST)).map(|index| environment.item(index).prompt);
    prompts.filter(|prompt| !prompt.is_empty()).map(|prompt| digest(&prompt))
}

fn digest(prompt: &[Message]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for message in prompt {
        digest.update(message.role.name());
        for word in message.content.split_whitespace() {
            digest.update([0]);
            digest.update(word.to_lowercase());
        }
        digest.update([1]);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_environments::native;
    use serde_json::json;

    fn numbers(level: &str) -> std::sync::Arc<dyn Environment> {
        let args = json!({ "level": level });
        native::load("self_prediction", args.as_object().unwrap(), 0).unwrap()
    }

    #[test]
    fn evaluated_prompts_that_are_trained_are_counted() {
        let compared = |trained: &str, evaluated: &str| {
            let [trained, evaluated] = [numbers(trained), numbers(evaluated)];
            contamination(&[
                ComparedEnvironment { name: "train", trained: true, environment: &*trained },
                ComparedEnvironment { name: "test", trained: false, environment: &*evaluated },
            ])
        };
        // The 99 sums of 0 to 9 are among those of 0 to 20.
        let notes = compared("to_20", "one_digit");
        assert!(
            notes.len() == 1 && notes[0].starts_with("test: 99 of its 99 prompts are trained, too"),
            "{notes:?}"
        );
        let alone = numbers("to_20");
        assert!(
            contamination(&[ComparedEnvironment { name: "a", trained: true, environment: &*alone }])
                .is_empty()
        );
    }

    #[test]
    fn case_and_whitespace_do_not_make_a_prompt_another_one() {
        assert_eq!(
            digest(&[Message::user("How  many\nAre 3?")]),
            digest(&[Message::user("how many are 3?")])
        );
        assert_ne!(digest(&[Message::user("a b")]), digest(&[Message::user("ab")]));
        assert_ne!(digest(&[Message::user("a")]), digest(&[Message::system("a")]));
    }
}
