//! One task of an environment.

use crate::chat::Message;
use serde::{Deserialize, Serialize};

/// One task: what the policy reads first, and what the reward needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Index within the environment's data.
    pub index: u64,
    /// The conversation so far; ends with a user message.
    pub prompt: Vec<Message>,
    /// The right answer, where there is one.
    pub answer: Option<String>,
    /// Whatever else the reward needs. Never shown to the policy.
    pub info: serde_json::Value,
}
