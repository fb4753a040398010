//! Retries of failed requests to a service.

use crate::service::deadlines::Deadlines;
use minds_core::reward::RewardError;
use minds_core::service::BackendError;
use std::fmt::Display;
use std::future::Future;
use std::time::Duration;
use tracing::warn;

/// How often requests are retried, and with which pauses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    /// Tries after the first.
    pub retries: u32,
    /// Pause before the first retry; doubles each time.
    pub first_pause: Duration,
    /// Upper bound of the doubling pause.
    pub longest_pause: Duration,
    /// Time limits of each try.
    pub deadlines: Deadlines,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            retries: 5,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(10),
            deadlines: Deadlines::default(),
        }
    }
}

impl Retry {
    /// Repeats an operation as long as its error is retryable.
    ///
    /// # Errors
    /// The last error.
    pub async fn run<T, E, F>(&self, what: &str, mut operation: impl FnMut() -> F) -> Result<T, E>
    where
        E: Retryable,
        F: Future<Output = Result<T, E>>,
    {
        let mut pause = self.first_pause;
        for left in (0..=self.retries).rev() {
            match operation().await {
                Err(error) if error.is_retryable() && left > 0 => {
                    warn!(what, %error, retries_left = left, "failed, trying again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(self.longest_pause);
                }
                result => return result,
            }
        }
        unreachable!("the last try returns its result")
    }
}

/// An error that reports whether a retry makes sense.
pub trait Retryable: Display {
    /// Whether the same request may succeed later.
    fn is_retryable(&self) -> bool;
}

impl Retryable for BackendError {
    fn is_retryable(&self) -> bool {
        Self::is_retryable(self)
    }
}

impl Retryable for RewardError {
    fn is_retryable(&self) -> bool {
        Self::is_retryable(self)
    }
}
