//! Threads for computations that would hold an actor's thread for over a millisecond.
//!
//! The queue is bounded: submitting waits for a permit. A job that panics gives its caller an error; the thread
//! survives.

use crate::mailbox::panic_message;
use crossbeam_channel::{Sender, bounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::{Semaphore, oneshot};

type Job = Box<dyn FnOnce() + Send>;

/// Why a job has no result.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CpuPoolError {
    /// The job panicked; its message.
    #[error("a computation panicked: {0}")]
    Panicked(String),
    /// The pool has been shut down.
    #[error("the pool of threads has been shut down")]
    Closed,
}

/// A pool of threads, or none. Cheap to clone; the threads end with the last clone.
#[derive(Clone)]
pub struct CpuPool {
    queue: Option<(Sender<Job>, Arc<Semaphore>)>,
}

impl CpuPool {
    /// Starts `threads` threads, at least one, with room for as many waiting jobs again.
    ///
    /// # Errors
    /// The operating system refused a thread.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let (sender, jobs) = bounded::<Job>(threads);
        for n in 0..threads {
            let jobs = jobs.clone();
            std::thread::Builder::new()
                .name(format!("minds-cpu-{n}"))
                .spawn(move || jobs.iter().for_each(|job| job()))?;
        }
        // As many permits as the channel has capacity: a job with a permit never blocks on the channel.
        Ok(Self { queue: Some((sender, Arc::new(Semaphore::new(threads)))) })
    }

    /// No threads: jobs run where they are submitted, so that a test in virtual time stays on one thread.
    #[must_use]
    pub fn inline() -> Self {
        Self { queue: None }
    }

    /// Runs a job and waits for its result.
    ///
    /// # Errors
    /// The job panicked, or the pool is gone.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CpuPoolError> {
        let guarded = move || {
            catch_unwind(AssertUnwindSafe(job))
                .map_err(|panic| CpuPoolError::Panicked(panic_message(&*panic)))
        };
        let Some((queue, room)) = &self.queue else { return guarded() };
        let permit = room.clone().acquire_owned().await.map_err(|_| CpuPoolError::Closed)?;
        let (answer, result) = oneshot::channel();
        let job = Box::new(move || {
            drop(permit);
            // The caller may have gone; then the result is dropped.
            drop(answer.send(guarded()));
        });
        queue.send(job).map_err(|_| CpuPoolError::Closed)?;
        result.await.map_err(|_| CpuPoolError::Closed)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_that_panics_costs_only_its_own_result() {
        for pool in [CpuPool::start(1).unwrap(), CpuPool::inline()] {
            let panicked = pool.run(|| -> u32 { panic!("no such number") }).await;
            assert_eq!(panicked, Err(CpuPoolError::Panicked("no such number".into())));
            assert_eq!(pool.run(|| 6 * 7).await, Ok(42));
        }
    }
}
