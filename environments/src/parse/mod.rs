//! Strict small grammars for answers.
//!
//! The whole answer must match; there is no search for something that looks right inside a longer text. A parser
//! that takes the last array of a text teaches a policy to write on after it: its end-of-turn token decays while
//! the reward stays at its best. Nothing here panics, whatever the text, and every odd case has a rule: see
//! [`json`], [`integer`] and [`lines`].

pub mod integer;
pub mod json;
pub mod lines;

pub use integer::{Integer, whole_numbers};
pub use json::{LARGEST, lone_number, number, permutation};
pub use lines::{feeling, headed, labelled, share};

/// White space that may stand around an answer: JSON's, and no other.
pub(crate) const SPACE: [char; 4] = [' ', '\t', '\n', '\r'];
