//! `quarantine.jsonl`: episodes whose reward failed for good, one a line, for people to look at.

use minds_stages::parcels::Poison;
use serde::Serialize;

/// One line per reward that failed for good.
pub const FILE: &str = "quarantine.jsonl";

#[derive(Serialize)]
pub(super) struct Row<'a> {
    environment: &'a str,
    item: u64,
    group: u64,
    member: u32,
    policy: u64,
    /// `service`, `timed_out`, `environment` or `not_finite`.
    kind: serde_json::Value,
    /// The same in words.
    cause: String,
    /// The answers as they were read, in order.
    text: &'a [String],
}

impl<'a> From<&'a Poison> for Row<'a> {
    fn from(poison: &'a Poison) -> Self {
        let Poison { environment, episode, item, policy, cause, answers } = poison;
        let tagged = serde_json::to_value(cause).unwrap_or_default();
        Self {
            environment,
            item: *item,
            group: episode.group.0,
            member: episode.member,
            policy: policy.0,
            kind: tagged["kind"].clone(),
            cause: cause.to_string(),
            text: answers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::ids::{EpisodeId, GroupId, PolicyVersion};
    use minds_core::reward::Missing;

    #[test]
    fn a_line_tells_the_item_the_cause_and_the_text() {
        let poison = Poison {
            environment: "ghost".into(),
            episode: EpisodeId { group: GroupId(7), member: 3 },
            item: 41,
            policy: PolicyVersion(2),
            cause: Missing::TimedOut(600),
            answers: vec!["1, 2".into()],
        };
        let line = serde_json::to_string(&Row::from(&poison)).unwrap();
        let expected = r#"{"environment":"ghost","item":41,"group":7,"member":3,"policy":2,"kind":"timed_out","cause":"scoring took longer than 600 s","text":["1, 2"]}"#;
        assert_eq!(line, expected);
    }
}
