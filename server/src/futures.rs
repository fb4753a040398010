//! Results that are promised now and fetched later.
//!
//! Every promise is fulfilled: with a result, with a failure, or, if its task is lost, with a failure that says so.
//! Results stay available for a while after they are fetched, because the response may have been lost. Pending requests
//! are bounded in number and in bytes, results in bytes.

use crate::api_error::ApiError;
use crate::options::ServerOptions;
use crate::outcome::RequestOutcome;
use axum::http::StatusCode;
use minds_tinker::types::{FailureCategory, RequestFailed};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

/// Table of all pending requests and their results.
#[derive(Debug)]
pub(crate) struct FutureTable {
    table: Mutex<FutureTableState>,
    /// Prefix of all request ids, unique to this process.
    prefix: String,
    options: ServerOptions,
}

#[derive(Debug, Default)]
struct FutureTableState {
    entries: HashMap<u64, FutureEntry>,
    next: u64,
    pending: usize,
    pending_bytes: usize,
    /// Number and bytes of the pending requests of each owner that has some.
    owners: HashMap<Arc<str>, (usize, usize)>,
    result_bytes: usize,
    /// Fulfilled promises, the oldest first.
    kept: VecDeque<u64>,
}

#[derive(Debug)]
struct FutureEntry {
    owner: Arc<str>,
    outcome: watch::Receiver<Option<Arc<RequestOutcome>>>,
    /// Size of the request while it is pending, of the result afterwards.
    bytes: usize,
    kept: Option<Instant>,
    fetched: Option<Instant>,
    task: Option<AbortHandle>,
}

/// Obligation to deliver one result. Dropping it reports the request as lost.
#[derive(Debug)]
pub(crate) struct ResultPromise {
    futures: Arc<FutureTable>,
    number: u64,
    outcome: watch::Sender<Option<Arc<RequestOutcome>>>,
}

impl FutureTable {
    pub(crate) fn new(options: &ServerOptions) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            prefix: crate::ids::unique_id("req"),
            options: options.clone(),
        })
    }

    /// Promises the result of a request of `bytes` bytes, which counts toward the limits of the session `owner`.
    pub(crate) fn promise(self: &Arc<Self>, owner: &str, bytes: usize) -> Result<ResultPromise, ApiError> {
        let mut table = self.table.lock();
        if table.pending >= self.options.max_pending {
            return Err(ApiError::too_many_requests(format!(
                "{} requests are already in progress",
                table.pending
            )));
        }
        // One request is always accepted, regardless of its size.
        if table.pending > 0 && table.pending_bytes + bytes > self.options.pending_bytes {
            return Err(ApiError::too_many_requests(format!(
                "{} bytes of requests are already in progress",
                table.pending_bytes
            )));
        }
        let (own, own_bytes) = table.owners.get(owner).copied().unwrap_or_default();
        if own >= self.options.max_pending_of_session {
            return Err(ApiError::too_many_requests(format!(
                "{own} requests of this session are already in progress"
            )));
        }
        if own > 0 && own_bytes + bytes > self.options.pending_bytes_of_session {
            return Err(ApiError::too_many_requests(format!(
                "{own_bytes} bytes of requests of this session are already in progress"
            )));
        }
        let known = table.owners.get_key_value(owner).map(|(owner, _)| owner.clone());
        let owner = known.unwrap_or_else(|| owner.into());
        table.owners.insert(owner.clone(), (own + 1, own_bytes + bytes));
        let (sender, outcome) = watch::channel(None);
        let number = table.next;
        table.next += 1;
        table.pending += 1;
        table.pending_bytes += bytes;
        let entry = FutureEntry { owner, outcome, bytes, kept: None, fetched: None, task: None };
        table.entries.insert(number, entry);
        Ok(ResultPromise { futures: self.clone(), number, outcome: sender })
    }

    /// Waits for a result for at most `wait`; `None` means that it is still pending.
    pub(crate) async fn fetch(
        &self,
        id: &str,
        wait: Duration,
    ) -> Result<Option<Arc<RequestOutcome>>, ApiError> {
        let number = self.number(id)?;
        let outcome = self.table.lock().entries.get(&number).map(|entry| entry.outcome.clone());
        let mut outcome = outcome.ok_or_else(|| gone(id))?;
        let kept = match timeout(wait, outcome.wait_for(Option::is_some)).await {
            Ok(Ok(kept)) => kept.clone(),
            Ok(Err(_)) | Err(_) => return Ok(None),
        };
        if let Some(entry) = self.table.lock().entries.get_mut(&number) {
            entry.fetched.get_or_insert_with(Instant::now);
        }
        Ok(kept)
    }

    /// Id of a request whose result is gone.
    pub(crate) fn forgotten(&self) -> String {
        format!("{}-{}", self.prefix, u64::MAX)
    }

    /// Aborts the task of a pending request. A request that already has a result keeps it.
    pub(crate) fn cancel(&self, id: &str) -> Result<(), ApiError> {
        let number = self.number(id)?;
        let task = match self.table.lock().entries.get_mut(&number) {
            None => return Err(gone(id)),
            Some(entry) => entry.task.take(),
        };
        if let Some(task) = task {
            task.abort();
        }
        Ok(())
    }

    /// Removes results whose retention time is over.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let mut table = self.table.lock();
        let FutureTableState { entries, result_bytes, kept, .. } = &mut *table;
        entries.retain(|_, entry| {
            let Some(kept) = entry.kept else { return true };
            let over = match entry.fetched {
                Some(fetched) => now >= fetched + self.options.keep_fetched,
                None => now >= kept + self.options.keep_unfetched,
            };
            if over {
                *result_bytes -= entry.bytes;
            }
            !over
        });
        kept.retain(|number| entries.contains_key(number));
    }

    fn record(&self, number: u64, bytes: usize) {
        let mut table = self.table.lock();
        let FutureTableState { entries, pending, pending_bytes, owners, result_bytes, kept, .. } =
            &mut *table;
        if let Some(entry) = entries.get_mut(&number) {
            *pending -= 1;
            *pending_bytes -= entry.bytes;
            if let Some((own, own_bytes)) = owners.get_mut(&entry.owner) {
                (*own, *own_bytes) = (*own - 1, *own_bytes - entry.bytes);
                if *own == 0 {
                    owners.remove(&entry.owner);
                }
            }
            *result_bytes += bytes;
            (entry.bytes, entry.kept, entry.task) = (bytes, Some(Instant::now()), None);
            kept.push_back(number);
        }
        // The newest result stays, regardless of its size.
        while *result_bytes > self.options.result_bytes && kept.len() > 1 {
            let Some(entry) = kept.pop_front().and_then(|oldest| entries.remove(&oldest)) else { continue };
            *result_bytes -= entry.bytes;
        }
    }

    fn number(&self, id: &str) -> Result<u64, ApiError> {
        let digits = id.strip_prefix(&self.prefix).and_then(|rest| rest.strip_prefix('-'));
        let number = digits.and_then(|digits| digits.parse().ok());
        number.ok_or_else(|| {
            ApiError::not_found(format!("`{}` is not a request of this server", crate::ids::printable(id)))
        })
    }
}

/// A status 410, on which clients that can resend the request do so.
fn gone(id: &str) -> ApiError {
    ApiError::new(
        StatusCode::GONE,
        format!("the result of `{}` is not kept any more", crate::ids::printable(id)),
    )
}

impl ResultPromise {
    /// Request id under which clients fetch the result.
    pub(crate) fn id(&self) -> String {
        format!("{}-{}", self.futures.prefix, self.number)
    }

    /// Delivers the outcome and wakes the polls that wait for it.
    pub(crate) fn fulfill(self, outcome: RequestOutcome) {
        self.deliver(outcome);
    }

    /// Spawns a task that computes the outcome and delivers it; [`FutureTable::cancel`] can abort it.
    pub(crate) fn fulfill_with<F>(self, work: F)
    where
        F: Future<Output = RequestOutcome> + Send + 'static,
    {
        let futures = self.futures.clone();
        let number = self.number;
        let task = tokio::spawn(async move {
            let outcome = work.await;
            self.deliver(outcome);
        });
        if let Some(entry) = futures.table.lock().entries.get_mut(&number)
            && entry.kept.is_none()
        {
            entry.task = Some(task.abort_handle());
        }
    }

    fn deliver(&self, outcome: RequestOutcome) {
        if self.outcome.borrow().is_none() {
            self.futures.record(self.number, outcome.bytes());
            self.outcome.send_replace(Some(Arc::new(outcome)));
        }
    }
}

impl Drop for ResultPromise {
    fn drop(&mut self) {
        // The task was cancelled or panicked, or its model was unloaded.
        self.deliver(RequestOutcome::Failed(RequestFailed {
            error: "the request was dropped before it had a result".into(),
            category: FailureCategory::Server,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const WAIT: Duration = Duration::from_secs(10);

    fn futures(change: impl FnOnce(&mut ServerOptions)) -> Arc<FutureTable> {
        let mut options = ServerOptions::new(|| std::time::UNIX_EPOCH);
        change(&mut options);
        FutureTable::new(&options)
    }

    fn result(size: usize) -> RequestOutcome {
        RequestOutcome::json(&json!("x".repeat(size)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_waits_its_time_and_a_result_can_be_fetched_again() {
        let futures = futures(|_| {});
        let promise = futures.promise("a", 1).unwrap();
        let id = promise.id();
        let start = Instant::now();
        assert_eq!(futures.fetch(&id, WAIT).await, Ok(None));
        assert_eq!(start.elapsed(), WAIT);
        let waiting = tokio::spawn({
            let futures = futures.clone();
            let id = id.clone();
            async move { futures.fetch(&id, WAIT).await }
        });
        tokio::task::yield_now().await;
        promise.fulfill(result(3));
        let first = waiting.await.unwrap().unwrap().unwrap();
        assert_eq!(futures.fetch(&id, WAIT).await.unwrap().unwrap(), first);
        assert_eq!(start.elapsed(), WAIT, "a result wakes its poll at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_promise_leaves_a_failure() {
        let futures = futures(|_| {});
        let promise = futures.promise("a", 0).unwrap();
        let dropped = promise.id();
        drop(promise);
        let promise = futures.promise("a", 0).unwrap();
        let cancelled = promise.id();
        promise.fulfill_with(std::future::pending());
        futures.cancel(&cancelled).unwrap();
        let promise = futures.promise("a", 0).unwrap();
        let panicked = promise.id();
        promise.fulfill_with(async { panic!("a bug") });
        for id in [dropped, cancelled, panicked] {
            let outcome = futures.fetch(&id, WAIT).await.unwrap().unwrap();
            assert!(matches!(&*outcome, RequestOutcome::Failed(_)), "{outcome:?}");
        }
        assert_eq!(futures.table.lock().pending, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn results_leave_by_age_sooner_once_they_were_fetched() {
        let futures = futures(|o| {
            o.keep_fetched = Duration::from_secs(10);
            o.keep_unfetched = Duration::from_secs(100);
        });
        let ids: Vec<String> = (0..3)
            .map(|n| {
                let promise = futures.promise("a", 0).unwrap();
                let id = promise.id();
                if n < 2 {
                    promise.fulfill(result(1))
                } else {
                    std::mem::forget(promise)
                }
                id
            })
            .collect();
        futures.fetch(&ids[0], WAIT).await.unwrap().unwrap();
        let status = |answer: Result<Option<Arc<RequestOutcome>>, ApiError>| answer.err().map(|r| r.status);
        for (seconds, gone) in [(9, [false, false]), (2, [true, false]), (90, [true, true])] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            futures.sweep();
            for (id, gone) in ids.iter().zip(gone) {
                let exists = futures.table.lock().entries.contains_key(&futures.number(id).unwrap());
                assert_eq!(exists, !gone, "{id} after {seconds} more");
            }
        }
        assert_eq!(futures.table.lock().result_bytes, 0);
        assert_eq!(status(futures.fetch(&ids[0], WAIT).await), Some(StatusCode::GONE));
        assert_eq!(status(futures.fetch("req-other-0", WAIT).await), Some(StatusCode::NOT_FOUND));
        assert_eq!(futures.fetch(&ids[2], WAIT).await, Ok(None), "what is pending never leaves");
    }

    #[tokio::test(start_paused = true)]
    async fn promises_and_results_are_bounded_in_number_and_bytes() {
        let futures = futures(|o| {
            o.max_pending = 2;
            o.pending_bytes = 100;
            o.result_bytes = 1000;
        });
        let large = futures.promise("a", 1000).unwrap();
        assert_eq!(futures.promise("a", 1).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        let id = large.id();
        large.fulfill(result(200));
        let (a, b) = (futures.promise("a", 50).unwrap(), futures.promise("a", 50).unwrap());
        assert_eq!(futures.promise("a", 0).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        let newer = a.id();
        a.fulfill(result(200));
        drop(b);
        assert_eq!(futures.fetch(&id, WAIT).await.unwrap_err().status, StatusCode::GONE);
        assert!(futures.fetch(&newer, WAIT).await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_leaves_room_for_others() {
        let futures = futures(|o| {
            o.max_pending_of_session = 2;
            o.pending_bytes_of_session = 100;
        });
        let status = |owner: &str, bytes: usize| futures.promise(owner, bytes).err().map(|r| r.status);
        let full = Some(StatusCode::TOO_MANY_REQUESTS);
        let held = [futures.promise("a", 60).unwrap(), futures.promise("a", 10).unwrap()];
        assert_eq!((status("a", 0), status("b", 0)), (full, None));
        let [large, small] = held;
        drop(small);
        assert_eq!((status("a", 50), status("a", 30), status("b", 90)), (full, None, None));
        drop(large);
        assert_eq!(status("a", 1000), None, "one request is always let in");
        assert!(futures.table.lock().owners.is_empty());
    }
}
