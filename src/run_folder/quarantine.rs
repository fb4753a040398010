//! `quarantine.jsonl`: rollouts whose reward failed for good, one a line, for inspection.

use minds_stages::messages::QuarantinedRollout;
use serde::Serialize;

/// File with one line per reward that failed for good.
pub const FILE: &str = "quarantine.jsonl";

#[derive(Serialize)]
pub(super) struct QuarantineRow<'a> {
    environment: &'a str,
    item: u64,
    group: u64,
    member: u32,
    policy: u64,
    /// `service`, `timed_out`, `environment` or `not_finite`.
    kind: serde_json::Value,
    /// Message of the reward error.
    cause: String,
    /// Texts of the completions, in order.
    text: &'a [String],
}

impl<'a> From<&'a QuarantinedRollout> for QuarantineRow<'a> {
    fn from(poison: &'a QuarantinedRollout) -> Self {
        let QuarantinedRollout { environment, rollout, item, policy, cause, answers } = poison;
        let tagged = serde_json::to_value(cause).unwrap_or_default();
        Self {
            environment,
            item: *item,
            group: rollout.group.0,
            member: rollout.member,
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
    use minds_core::ids::{GroupId, PolicyVersion, RolloutId};
    use minds_core::reward::RewardError;

    #[test]
    fn a_line_holds_the_item_the_cause_and_the_text() {
        let poison = QuarantinedRollout {
            environment: "ghost".into(),
            rollout: RolloutId { group: GroupId(7), member: 3 },
            item: 41,
            policy: PolicyVersion(2),
            cause: RewardError::TimedOut(600),
            answers: vec!["1, 2".into()],
        };
        let line = serde_json::to_string(&QuarantineRow::from(&poison)).unwrap();
        let expected = r#"{"environment":"ghost","item":41,"group":7,"member":3,"policy":2,"kind":"timed_out","cause":"scoring took longer than 600 s","text":["1, 2"]}"#;
        assert_eq!(line, expected);
    }
}
