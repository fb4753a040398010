//! Launches actors and watches them.
//!
//! The mailbox's capacity is set before the first message can arrive. An actor that panics is restarted as often as
//! its budget allows, and its mailboxes are bound to the successor; when the budget is spent, its stage has ended and
//! reports why. `actix::Supervisor` can do neither: a panic kills it together with its actor. A stage that is dropped
//! ends at once, and its mailboxes close.

use actix::dev::channel;
use actix::{Actor, Addr, Context};
use std::any::Any;
use std::future::Future;
use std::num::NonZeroUsize;
use tokio::task::JoinHandle;
use tracing::error;

/// How a stage ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageExit {
    /// It stopped by itself, or all its senders are gone.
    Finished,
    /// It panicked more often than its budget allows. Message of the last panic.
    Panicked(String),
    /// It was aborted before its end.
    Aborted,
}

/// A launched actor, or a task that is watched like one. Ends when it is dropped.
#[must_use = "a stage ends when it is dropped"]
pub struct StageHandle {
    name: &'static str,
    watcher: WatchedTask<StageExit>,
}

impl StageHandle {
    /// The name it was launched with.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Waits for the stage to end.
    pub async fn ended(mut self) -> StageExit {
        self.watch().await
    }

    /// Waits for the stage to end, without consuming the handle.
    pub async fn watch(&mut self) -> StageExit {
        (&mut self.watcher.0).await.unwrap_or(StageExit::Aborted)
    }
}

/// A task that is aborted when its handle is dropped: a plain handle would leave it running unseen.
struct WatchedTask<T>(JoinHandle<T>);

impl<T> Drop for WatchedTask<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Launches an actor on the current local task set and watches it.
///
/// `make` builds it, and builds it again after a panic, at most `restarts` times; `bind` connects its mailboxes.
pub fn launch<A, Make, Bind>(
    name: &'static str,
    capacity: NonZeroUsize,
    restarts: u32,
    mut make: Make,
    mut bind: Bind,
) -> StageHandle
where
    A: Actor<Context = Context<A>>,
    Make: FnMut() -> A + 'static,
    Bind: FnMut(&Addr<A>) + 'static,
{
    let mut start = move || {
        let (sender, receiver) = channel::channel(capacity.get());
        let life = Context::with_receiver(receiver).into_future(make());
        let life = WatchedTask(actix_rt::spawn(life));
        bind(&Addr::new(sender));
        life
    };
    let mut life = start();
    let watcher = actix_rt::spawn(async move {
        let mut left = restarts;
        loop {
            let exit = exit_of((&mut life.0).await);
            let StageExit::Panicked(why) = &exit else { return exit };
            error!(stage = name, restarts_left = left, %why, "stage panicked");
            if left == 0 {
                return exit;
            }
            left -= 1;
            life = start();
        }
    });
    StageHandle { name, watcher: WatchedTask(watcher) }
}

/// Spawns a future beside the actors and watches it like one; it is never restarted.
pub fn spawn_watched(name: &'static str, work: impl Future<Output = ()> + Send + 'static) -> StageHandle {
    watch(name, tokio::spawn(work))
}

/// The same on the current local task set, where the actors are.
pub fn spawn_watched_local(name: &'static str, work: impl Future<Output = ()> + 'static) -> StageHandle {
    watch(name, actix_rt::spawn(work))
}

fn watch(name: &'static str, task: JoinHandle<()>) -> StageHandle {
    let mut life = WatchedTask(task);
    let watcher = actix_rt::spawn(async move { exit_of((&mut life.0).await) });
    StageHandle { name, watcher: WatchedTask(watcher) }
}

fn exit_of(end: Result<(), tokio::task::JoinError>) -> StageExit {
    match end {
        Ok(()) => StageExit::Finished,
        Err(end) => match end.try_into_panic() {
            Ok(panic) => StageExit::Panicked(panic_message(&*panic)),
            Err(_) => StageExit::Aborted,
        },
    }
}

/// Message of a panic.
#[must_use]
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it said nothing".into())
}

/// Runs a future to its end even if it panics.
///
/// # Errors
/// The panic's message.
pub async fn catch_panic<T>(work: impl Future<Output = T>) -> Result<T, String> {
    use futures::FutureExt;
    std::panic::AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .map_err(|panic| format!("it panicked: {}", panic_message(&*panic)))
}
