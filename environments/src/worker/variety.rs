//! Whether items differ: an environment that fixes its random seed too early shows one prompt forever.

use minds_core::environment::SessionRollout;
use minds_core::ids::Token;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// Number of items that are checked.
pub(super) const CHECKED_ITEMS: usize = 20;

/// The prompts of the first items that were sampled.
#[derive(Default)]
pub(super) struct PromptVariety {
    seen: Mutex<SeenPrompts>,
}

#[derive(Default)]
struct SeenPrompts {
    items: HashSet<u64>,
    prompt: Option<Arc<[Token]>>,
    /// Whether the check has finished.
    is_settled: bool,
}

impl PromptVariety {
    /// Records the prompt of an item. Returns `true` once, when the first 20 items have had one prompt.
    pub(super) fn is_missing(&self, item: u64, performance: &SessionRollout) -> bool {
        let Some(first) = performance.turns.first() else { return false };
        let mut seen = self.seen.lock();
        if seen.is_settled {
            return false;
        }
        let is_same = *seen.prompt.get_or_insert_with(|| first.prompt.clone()) == first.prompt;
        seen.items.insert(item);
        seen.is_settled = !is_same || seen.items.len() >= CHECKED_ITEMS;
        is_same && seen.is_settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::reward::{Metrics, Reward, Score};
    use minds_core::rollout::Turn;
    use minds_core::sampling::{Completion, StopReason};

    fn shown(prompt: Token) -> SessionRollout {
        let answer = Completion::new(vec![0], vec![0.0], StopReason::Stop);
        let turn = Turn { prompt: [prompt].into(), completion: answer, text: String::new(), complete: true };
        let score = Score { reward: Reward::new(0.0).unwrap(), metrics: Metrics::default() };
        SessionRollout { turns: vec![turn], opening: Arc::default(), score }
    }

    /// At which of the items it says that they are one prompt.
    fn told(items: impl IntoIterator<Item = (u64, Token)>) -> Vec<u64> {
        let variety = PromptVariety::default();
        let items = items.into_iter();
        items
            .filter(|(item, prompt)| variety.is_missing(*item, &shown(*prompt)))
            .map(|(item, _)| item)
            .collect()
    }

    #[test]
    fn one_prompt_for_twenty_items_is_reported_once() {
        assert_eq!(told((0..50).flat_map(|item| [(item, 1); 8])), [19]);
        assert_eq!(told((0..19).map(|item| (item, 1))), [0; 0], "these are too few to tell");
        assert_eq!(told((0..50).map(|item| (item, Token::from(item == 18)))), [0; 0]);
    }
}
