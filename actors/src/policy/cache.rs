//! Sends equal queries once, also while the response is in flight.
//!
//! Only successful answers are cached. A query that failed, panicked, or whose waiters gave up is forgotten, so that
//! the next equal query is sent again and never joins a wait that cannot succeed.

use dashmap::DashMap;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use minds_core::reward::RewardError;
use std::hash::Hash;

/// Most answers kept. A full cache starts over; waiters of answers in flight still receive them.
const MEMORY: usize = 1 << 14;

type SharedAnswer<V> = Shared<BoxFuture<'static, Result<V, RewardError>>>;

/// Answers by query, cached or in flight.
pub struct AnswerCache<K: Eq + Hash, V: Clone> {
    answers: DashMap<K, SharedAnswer<V>>,
}

impl<K: Eq + Hash, V: Clone> Default for AnswerCache<K, V> {
    fn default() -> Self {
        Self { answers: DashMap::new() }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> AnswerCache<K, V> {
    /// The answer to a query, and whether it had to be sent.
    pub async fn once(
        &self,
        key: K,
        ask: impl FnOnce() -> BoxFuture<'static, Result<V, RewardError>>,
    ) -> (Result<V, RewardError>, bool) {
        if self.answers.len() >= MEMORY {
            self.answers.clear();
        }
        let mut first = false;
        let answer = self
            .answers
            .entry(key.clone())
            .or_insert_with(|| {
                first = true;
                ask().shared()
            })
            .clone();
        let mut question = PendingQuery { memory: self, key, answer: answer.clone(), keep: false };
        let result = answer.await;
        question.keep = result.is_ok();
        (result, first)
    }
}

/// A wait for an answer; forgets the query when it ends without one.
struct PendingQuery<'a, K: Eq + Hash, V: Clone> {
    memory: &'a AnswerCache<K, V>,
    key: K,
    answer: SharedAnswer<V>,
    keep: bool,
}

impl<K: Eq + Hash, V: Clone> Drop for PendingQuery<'_, K, V> {
    fn drop(&mut self) {
        if !self.keep {
            // Keeps an equal query that another task has sent since.
            self.memory.answers.remove_if(&self.key, |_, kept| kept.ptr_eq(&self.answer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::time::Duration;

    type Result = std::result::Result<u32, RewardError>;

    /// A query that takes a second, and counts how often it was sent.
    fn ask(asked: &Arc<AtomicU32>, answer: Result) -> impl FnOnce() -> BoxFuture<'static, Result> {
        let asked = asked.clone();
        move || {
            asked.fetch_add(1, Relaxed);
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                answer
            }
            .boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn equal_queries_are_sent_once_even_while_the_first_is_in_flight() {
        let memory = AnswerCache::default();
        let asked = Arc::new(AtomicU32::new(0));
        let one = || memory.once("x", ask(&asked, Ok(7)));
        let answers = tokio::join!(one(), one(), one());
        assert_eq!(answers, ((Ok(7), true), (Ok(7), false), (Ok(7), false)));
        assert_eq!(one().await, (Ok(7), false));
        assert_eq!(asked.load(Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_not_remembered() {
        let memory = AnswerCache::default();
        let asked = Arc::new(AtomicU32::new(0));
        let away = RewardError::Service("away".into());
        assert_eq!(memory.once("x", ask(&asked, Err(away.clone()))).await.0, Err(away));
        assert_eq!(memory.once("x", ask(&asked, Ok(7))).await, (Ok(7), true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_query_is_sent_again_for_the_remaining_waiters() {
        let memory = AnswerCache::default();
        let asked = Arc::new(AtomicU32::new(0));
        let short = tokio::time::timeout(Duration::from_millis(500), memory.once("x", ask(&asked, Ok(1))));
        let long = memory.once("x", ask(&asked, Ok(2)));
        let (given_up, waited) = tokio::join!(short, long);
        assert!(given_up.is_err());
        assert_eq!(waited, (Ok(1), false), "it had joined the first");
        assert_eq!(memory.once("x", ask(&asked, Ok(3))).await, (Ok(3), true));
    }
}
