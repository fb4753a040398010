//! Counts the tokens that the service bills, and keeps their price below a cap.
//!
//! Each request reserves the most that it can cost before it is sent, and is counted by its response. A request whose
//! response never came may have been executed: its reservation stays, so the price is never above the cap. A request
//! that does not fit waits for the reservations of others; if it would not fit without them either, the cap is reached,
//! which the owner of the run hears, and no request of that run is sent any more. The same happens when the service denies
//! a request to the account.

use minds_core::service::BackendError;
use minds_core::usage::{TokenPrices, TokenUsage};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Why no further request of a run is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestStop {
    /// A request did not fit below the cap.
    Cap,
    /// The service denied a request to the account: [`BackendError::Denied`].
    Denied(BackendError),
    /// The run has ended.
    Ended,
}

/// Counts of a run as its folder keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageCounts {
    /// Tokens of requests that were answered.
    pub billed: TokenUsage,
    /// Most tokens of requests whose response did not come, and which may have been billed.
    pub unconfirmed: TokenUsage,
}

impl UsageCounts {
    /// Most tokens that were billed.
    #[must_use]
    pub fn most(&self) -> TokenUsage {
        self.billed + self.unconfirmed
    }
}

/// Billed tokens of a step and of the run up to it, with the prices of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BilledTokens {
    /// Tokens since the step before.
    pub step: TokenUsage,
    /// Tokens of the whole run.
    pub total: TokenUsage,
    /// Prices of the model, where they are known.
    pub prices: Option<TokenPrices>,
}

/// The counter of one run; clones share their counts. The default counts nothing and has no cap.
#[derive(Clone, Debug, Default)]
pub struct UsageMeter(Option<Arc<MeterState>>);

#[derive(Debug)]
struct MeterState {
    prices: Option<TokenPrices>,
    max_usd: Option<f64>,
    counts: Mutex<RunningUsage>,
    /// Changes when a reservation is given back.
    released: watch::Sender<()>,
    /// Set once, by what stops the requests first.
    stopped: watch::Sender<Option<RequestStop>>,
}

/// What a run has used so far, and what its requests in flight may still use.
#[derive(Debug, Default)]
struct RunningUsage {
    counts: UsageCounts,
    /// Most tokens of the requests in flight.
    in_flight: TokenUsage,
    requests: usize,
    /// Total at the step before.
    until_last_step: TokenUsage,
}

impl UsageMeter {
    /// A meter of a run that has used `before`, with the prices of its model and a cap in USD.
    #[must_use]
    pub fn new(before: UsageCounts, prices: Option<TokenPrices>, max_usd: Option<f64>) -> Self {
        let counts =
            RunningUsage { counts: before, until_last_step: before.most(), ..RunningUsage::default() };
        Self(Some(Arc::new(MeterState {
            prices,
            max_usd,
            counts: Mutex::new(counts),
            released: watch::Sender::new(()),
            stopped: watch::Sender::new(None),
        })))
    }

    /// Counts to be kept, if anything is counted: requests in flight are unconfirmed.
    #[must_use]
    pub fn counts(&self) -> Option<UsageCounts> {
        let open = self.0.as_ref()?.lock();
        let UsageCounts { billed, unconfirmed } = open.counts;
        Some(UsageCounts { billed, unconfirmed: unconfirmed + open.in_flight })
    }

    /// Price in USD of these counts, if the prices of the model are known.
    #[must_use]
    pub fn usd(&self, counts: &UsageCounts) -> Option<f64> {
        Some(self.0.as_ref()?.prices?.usd(&counts.most()))
    }

    /// Billed tokens since the last call.
    pub(crate) fn next_step(&self) -> Option<BilledTokens> {
        let state = self.0.as_ref()?;
        let mut open = state.lock();
        let total = open.counts.most();
        let step = total - std::mem::replace(&mut open.until_last_step, total);
        Some(BilledTokens { step, total, prices: state.prices })
    }

    /// Waits until no further request is sent; returns why.
    pub async fn stopped(&self) -> RequestStop {
        let Some(state) = &self.0 else { return std::future::pending().await };
        let mut stopped = state.stopped.subscribe();
        let why = stopped.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        why.expect("the sender lives in the state")
    }

    /// Sends no further request if this is the error of one that the service denied to the account.
    pub(crate) fn note(&self, error: &BackendError) {
        if let (Some(state), BackendError::Denied { .. }) = (&self.0, error) {
            state.stop(RequestStop::Denied(error.clone()));
        }
    }

    /// Sends no further request, and waits until those in flight are answered.
    pub async fn finish(&self) {
        let Some(state) = &self.0 else { return };
        let mut released = state.released.subscribe();
        state.stop(RequestStop::Ended);
        while state.lock().requests > 0 {
            // The sender lives in the state, so the wait cannot fail.
            drop(released.changed().await);
        }
    }

    /// Reserves the most that a request can cost. `None` if the cap is reached.
    pub(crate) async fn reserve(&self, most: TokenUsage) -> Option<UsageReservation> {
        let Some(state) = &self.0 else { return Some(UsageReservation(None)) };
        let mut released = state.released.subscribe();
        let mut stopped = state.stopped.subscribe();
        loop {
            if stopped.borrow_and_update().is_some() {
                return None;
            }
            match state.admit(most) {
                Admission::Fits => return Some(UsageReservation(Some((state.clone(), most)))),
                Admission::Wait => {
                    // Both senders live in the state, so the waits cannot fail.
                    tokio::select! {
                        _ = released.changed() => {}
                        _ = stopped.changed() => {}
                    }
                }
                Admission::Never => {
                    state.stop(RequestStop::Cap);
                    return None;
                }
            }
        }
    }

    /// Reserves without waiting; a request that does not fit now reaches the cap.
    pub(crate) fn try_reserve(&self, most: TokenUsage) -> Option<UsageReservation> {
        let Some(state) = &self.0 else { return Some(UsageReservation(None)) };
        if state.stopped.borrow().is_some() {
            return None;
        }
        if matches!(state.admit(most), Admission::Fits) {
            return Some(UsageReservation(Some((state.clone(), most))));
        }
        state.stop(RequestStop::Cap);
        None
    }

    /// Counts a request that is sent whether or not it fits: its owner has reserved it before.
    pub(crate) fn count(&self, most: TokenUsage) -> UsageReservation {
        let Some(state) = &self.0 else { return UsageReservation(None) };
        state.open(&mut state.lock(), most);
        UsageReservation(Some((state.clone(), most)))
    }
}

enum Admission {
    Fits,
    Wait,
    Never,
}

impl MeterState {
    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, RunningUsage> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends no further request; the first cause stays.
    fn stop(&self, why: RequestStop) {
        self.stopped.send_if_modified(|stopped| {
            let first = stopped.is_none();
            stopped.get_or_insert(why);
            first
        });
    }

    fn admit(&self, most: TokenUsage) -> Admission {
        let mut open = self.lock();
        if let (Some(prices), Some(max_usd)) = (self.prices, self.max_usd) {
            let fits = |used: TokenUsage| prices.usd(&(used + most)) <= max_usd;
            if !fits(open.counts.most()) {
                return Admission::Never;
            }
            if !fits(open.counts.most() + open.in_flight) {
                return Admission::Wait;
            }
        }
        self.open(&mut open, most);
        Admission::Fits
    }

    fn open(&self, open: &mut RunningUsage, most: TokenUsage) {
        open.in_flight = open.in_flight + most;
        open.requests += 1;
    }

    fn close(&self, most: TokenUsage, billed: TokenUsage, unconfirmed: TokenUsage) {
        let mut open = self.lock();
        open.in_flight = open.in_flight - most;
        open.requests -= 1;
        open.counts.billed = open.counts.billed + billed;
        open.counts.unconfirmed = open.counts.unconfirmed + unconfirmed;
        drop(open);
        self.released.send_replace(());
    }
}

/// What a request in flight may cost. Dropped, it counts as unconfirmed: the request may have been executed.
#[derive(Debug)]
pub(crate) struct UsageReservation(Option<(Arc<MeterState>, TokenUsage)>);

impl UsageReservation {
    /// The request was answered, and these tokens are billed.
    pub(crate) fn settle(mut self, billed: TokenUsage) {
        if let Some((state, most)) = self.0.take() {
            state.close(most, billed, TokenUsage::default());
        }
    }

    /// The request was not executed.
    pub(crate) fn release(self) {
        self.settle(TokenUsage::default());
    }
}

impl Drop for UsageReservation {
    fn drop(&mut self) {
        if let Some((state, most)) = self.0.take() {
            state.close(most, TokenUsage::default(), most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use minds_core::service::DenialReason;

    const PRICES: TokenPrices = TokenPrices { prefill: 1e6, cached_prefill: 0.0, sample: 1e6, train: 1e6 };

    fn sampled(sampled: u64) -> TokenUsage {
        TokenUsage { sampled, ..TokenUsage::default() }
    }

    #[test]
    fn a_request_waits_for_reservations_and_is_refused_when_the_cap_is_reached() {
        let meter = UsageMeter::new(UsageCounts::default(), Some(PRICES), Some(10.0));
        let first = meter.reserve(sampled(8)).now_or_never().flatten().unwrap();
        let mut second = Box::pin(meter.reserve(sampled(4)));
        assert!(second.as_mut().now_or_never().is_none(), "it may fit once the first one is answered");
        first.settle(sampled(5));
        second.as_mut().now_or_never().flatten().unwrap().settle(sampled(4));
        assert!(meter.stopped().now_or_never().is_none());
        assert!(meter.reserve(sampled(2)).now_or_never().unwrap().is_none());
        assert_eq!(meter.stopped().now_or_never(), Some(RequestStop::Cap));
        assert!(meter.reserve(sampled(0)).now_or_never().unwrap().is_none(), "nothing is sent afterwards");
        assert_eq!(meter.counts().unwrap().most(), sampled(9));
    }

    #[test]
    fn nothing_is_sent_after_a_denied_request() {
        let meter = UsageMeter::new(UsageCounts::default(), None, None);
        let denied = BackendError::Denied { reason: DenialReason::Credit, detail: "pay".into() };
        meter.note(&BackendError::Unavailable("busy".into()));
        assert!(meter.stopped().now_or_never().is_none());
        meter.note(&denied);
        assert_eq!(meter.stopped().now_or_never(), Some(RequestStop::Denied(denied.clone())));
        assert!(meter.reserve(sampled(1)).now_or_never().unwrap().is_none());
        assert!(meter.try_reserve(sampled(1)).is_none());
        // The end of the run does not replace the cause.
        assert!(meter.finish().now_or_never().is_some());
        assert_eq!(meter.stopped().now_or_never(), Some(RequestStop::Denied(denied)));
    }

    #[test]
    fn a_request_without_a_response_stays_counted() {
        let meter = UsageMeter::new(UsageCounts::default(), Some(PRICES), None);
        drop(meter.count(sampled(7)));
        meter.count(sampled(3)).release();
        let counts = meter.counts().unwrap();
        assert_eq!(counts, UsageCounts { billed: sampled(0), unconfirmed: sampled(7) });
        assert_eq!(meter.usd(&counts), Some(7.0));
        let resumed = UsageMeter::new(counts, Some(PRICES), Some(7.0));
        assert!(resumed.reserve(sampled(1)).now_or_never().unwrap().is_none());
    }
}
