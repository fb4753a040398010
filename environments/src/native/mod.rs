//! Environments written here. Each is immutable once loaded, and what it asks of an
//! [`Oracle`](minds_core::environment::Oracle) depends on the item alone, so that a group asks it once.

pub mod entropy_intuition;
pub mod ghost_trace;
pub mod gradient_intuition;
pub mod gradient_prophet;
pub mod number_guessing;
pub mod plain_letters;
pub mod self_prediction;
pub mod target_number;

use minds_core::environment::ScoringContext;

/// The last answer, if the policy ended its turn properly. An answer that was cut off, or that continues after its
/// stop, is not a whole answer and cannot be valid.
fn whole_answer<'a>(scene: &ScoringContext<'a>) -> Option<&'a str> {
    scene.rollout.turns.last().filter(|turn| turn.complete).map(|turn| turn.text.as_str())
}

/// 1 for yes, 0 for no, as metrics report it.
fn flag(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}
