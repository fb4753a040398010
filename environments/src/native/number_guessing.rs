//! Find a hidden number in a few guesses, over several turns.
//!
//! Each answer is one whole number. The environment replies `higher` or `lower` until the number is found or the
//! guesses are used up; an answer that is not a number ends the rollout. The reward needs no model:
//!
//! | end | reward |
//! |---|---|
//! | found with guess `g` of `guesses` | `0.5 + 0.5 (guesses - g + 1) / guesses`, above 0.5, 1 for the first guess |
//! | not found | `0.1 + 0.3 (1 - abs(last - number) / (largest - 1))`, 0.1 to 0.4; 0.1 for a last guess out of range |
//! | an answer that is not a whole number, or did not end | 0 |
//!
//! So readable guesses get more than unreadable ones, nearer guesses more than farther ones, and finding it the most.

use crate::args::{self, arguments};
use crate::error::EnvError;
use crate::native::{EnvInfo, flag};
use crate::parse::Integer;
use async_trait::async_trait;
use minds_core::chat::{Message, Role};
use minds_core::environment::{Environment, EnvironmentReply, Item, ScoringContext};
use minds_core::random::seeded_rng;
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use rand::seq::SliceRandom;
use serde_json::{Map, Value, json};
use std::cmp::Ordering;
use std::num::NonZeroU64;
use std::sync::Arc;

const ID: &str = "number_guessing";

/// Entry of this environment in the registry.
pub const INFO: EnvInfo = EnvInfo {
    id: ID,
    about: "find a hidden number in a few guesses; several turns, rewards need no model",
    args: ARGS,
    queries_model: false,
    load,
};

arguments! {
    NumberGuessingOptions {
        largest: NonZeroU64 = Whole { default: 20, min: 2, max: 1000 },
            "the hidden number lies from 1 to this; there is one item for each";
        guesses: usize = Whole { default: 4, min: 1, max: 16 },
            "answers before the game is lost";
        example: bool = Flag(true),
            "whether a game is shown before the question; without it, hardly any answer is valid";
    }
}

const SYSTEM: &str = "You find a number by guessing. Reply with one whole number only; you are told whether the number \
                      is higher or lower.";

const FOUND: &str = "found";
const HIGHER: &str = "higher";
const LOWER: &str = "lower";

fn load(given: &Map<String, Value>, seed: u64) -> Result<Arc<dyn Environment>, EnvError> {
    let options: NumberGuessingOptions = args::read(ID, ARGS, given)?;
    let mut numbers: Vec<u64> = (1..=options.largest.get()).collect();
    // Without the shuffle, the index of an item would be its number.
    numbers.shuffle(&mut seeded_rng([seed, 0, 0, 0]));
    Ok(Arc::new(NumberGuessing { options, numbers }))
}

struct NumberGuessing {
    options: NumberGuessingOptions,
    /// The hidden number of each item.
    numbers: Vec<u64>,
}

/// Result of one guess.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Guess {
    /// A number that is less than the hidden one, equal to it or greater; how far from it, where it lies in the range.
    Read {
        is: Ordering,
        distance: Option<u64>,
    },
    Unreadable,
}

impl NumberGuessing {
    fn number(&self, index: u64) -> u64 {
        self.numbers[(index % self.options.largest) as usize]
    }

    fn guess(&self, number: u64, text: &str) -> Guess {
        let Some(guess) = Integer::parse(text.trim_matches(crate::parse::SPACE)) else {
            return Guess::Unreadable;
        };
        // A number too large for an `i64` lies beyond the range on the side of its sign.
        let beyond = if guess.to_string().starts_with('-') { i64::MIN } else { i64::MAX };
        let guess = guess.get().unwrap_or(beyond);
        let is = i128::from(guess).cmp(&i128::from(number));
        let in_range = u64::try_from(guess).ok().filter(|n| (1..=self.options.largest.get()).contains(n));
        Guess::Read { is, distance: in_range.map(|n| n.abs_diff(number)) }
    }

    fn question(&self) -> Message {
        let NumberGuessingOptions { largest, guesses, .. } = self.options;
        Message::user(format!("I think of a number from 1 to {largest}. You have {guesses} guesses."))
    }

    /// A successful conversation: found in the middle of the upper half with the second guess.
    fn example(&self) -> [Message; 4] {
        let middle = self.options.largest.get().div_ceil(2);
        let above = (middle + 1).midpoint(self.options.largest.get());
        [
            self.question(),
            Message::assistant(middle.to_string()),
            Message::user(HIGHER),
            Message::assistant(above.to_string()),
        ]
    }

    fn reward(&self, guesses: &[Guess]) -> f64 {
        let all = self.options.guesses as f64;
        match guesses.last() {
            None | Some(Guess::Unreadable) => 0.0,
            Some(Guess::Read { is: Ordering::Equal, .. }) => {
                0.5 + 0.5 * (all - guesses.len() as f64 + 1.0) / all
            }
            Some(Guess::Read { distance: None, .. }) => 0.1,
            Some(Guess::Read { distance: Some(distance), .. }) => {
                0.1 + 0.3 * (1.0 - *distance as f64 / (self.options.largest.get() as f64 - 1.0))
            }
        }
    }
}

#[async_trait]
impl Environment for NumberGuessing {
    fn id(&self) -> &str {
        ID
    }

    fn items(&self) -> NonZeroU64 {
        self.options.largest
    }

    fn item(&self, index: u64) -> Item {
        let index = index % self.items();
        let number = self.number(index);
        let mut prompt = vec![Message::system(SYSTEM)];
        let question = self.question();
        if self.options.example {
            prompt.extend(self.example());
            prompt.push(Message::user(format!("{FOUND}\n{}", question.content)));
        } else {
            prompt.push(question);
        }
        Item { index, prompt, answer: Some(number.to_string()), info: json!({ "number": number }) }
    }

    async fn reply(&self, item: &Item, conversation: &[Message]) -> Result<EnvironmentReply, RewardError> {
        let mut guesses = conversation.iter().skip(item.prompt.len()).filter(|m| m.role == Role::Assistant);
        let is_over = guesses.clone().count() >= self.options.guesses;
        let last = guesses
            .next_back()
            .map_or(Guess::Unreadable, |m| self.guess(self.number(item.index), &m.content));
        Ok(match last {
            Guess::Read { is: Ordering::Less, .. } if !is_over => {
                EnvironmentReply::Continue(vec![Message::user(HIGHER)])
            }
            Guess::Read { is: Ordering::Greater, .. } if !is_over => {
                EnvironmentReply::Continue(vec![Message::user(LOWER)])
            }
            Guess::Read { .. } | Guess::Unreadable => EnvironmentReply::Done,
        })
    }

    fn parse(&self, _: &Item, answer: &str) -> Option<Value> {
        Integer::parse(answer.trim_matches(crate::parse::SPACE)).map(|guess| guess.to_string().into())
    }

    fn queries_policy(&self) -> bool {
        false
    }

    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let number = self.number(scene.item.index);
        // An incomplete answer is not valid on any turn; turns after it do not count.
        let mut guesses = Vec::new();
        for turn in &scene.rollout.turns {
            let guess = if turn.complete { self.guess(number, &turn.text) } else { Guess::Unreadable };
            guesses.push(guess);
            if guess == Guess::Unreadable {
                break;
            }
        }
        let is_valid = !guesses.contains(&Guess::Unreadable);
        let is_found = matches!(guesses.last(), Some(Guess::Read { is: Ordering::Equal, .. }));
        let metrics = Metrics::from([
            ("valid".into(), flag(is_valid)),
            ("found".into(), flag(is_found)),
            ("guesses".into(), guesses.len() as f64),
        ]);
        Ok(Score { reward: Reward::new(self.reward(&guesses) as f32)?, metrics })
    }
}
