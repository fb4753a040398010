//! Turns of gpt-oss: messages in channels, of which some are thoughts, some are calls, and one is the answer.

use super::tool_calls::ToolText;
use minds_core::chat::RequestedCall;

/// A turn of gpt-oss.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChannelTurn {
    pub(super) said: ToolText,
    pub(super) reasoning: String,
    /// Whether it ends in the answer or in a call.
    pub(super) is_answer: bool,
}

/// The messages of a turn, each in a channel. `None` if the text is no such turn.
pub(super) fn channels(text: &str) -> Option<ChannelTurn> {
    let mut turn = ChannelTurn::default();
    for part in text.split("<|end|><|start|>assistant") {
        let (header, body) = part.split_once("<|message|>")?;
        if body.contains("<|message|>") || body.contains("<|start|>") || body.contains("<|channel|>") {
            return None;
        }
        let header = header.replace("<|constrain|>", " ");
        let recipient = header
            .split_whitespace()
            .chain(header.split("<|channel|>"))
            .find_map(|word| word.strip_prefix("to="));
        let recipient = recipient.map(|name| name.split(['<', ' ']).next().unwrap_or(name));
        let channel = header
            .split_once("<|channel|>")
            .map(|(_, channel)| channel.split_whitespace().next().unwrap_or(""));
        turn.is_answer = false;
        match (recipient, channel?) {
            (Some(name), _) => {
                let name = name.strip_prefix("functions.").unwrap_or(name);
                turn.said.calls.push(RequestedCall::new(name, body.trim()));
                turn.is_answer = true;
            }
            (None, "final") => {
                turn.said.content.push_str(body);
                turn.is_answer = true;
            }
            (None, "analysis") => turn.reasoning.push_str(body),
            (None, "commentary") => turn.said.content.push_str(body),
            (None, _) => return None,
        }
    }
    Some(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_tell_thoughts_from_the_answer() {
        let turn = channels(
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        )
        .unwrap();
        assert_eq!((&*turn.reasoning, &*turn.said.content, turn.is_answer), ("hm", "Hi", true));
        assert!(!channels("<|channel|>analysis<|message|>hm").unwrap().is_answer);
        assert_eq!(channels("Hi"), None);
        assert_eq!(channels("<|channel|>final<|message|>a<|message|>b"), None);
    }
}
