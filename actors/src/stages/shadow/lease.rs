//! Adapter leases: for rewards that train an adapter themselves.
//!
//! A lease takes one of the pool's permits from the moment it is granted until it is dropped. The adapter starts from
//! the weights that sampled the rollout, like a measurement's; whatever the leaseholder did to it, the next lease
//! starts from clean weights.

use super::{NAME, ShadowPool, ShadowTrainer, release};
use crate::mailbox::{StageMessage, catch_panic};
use crate::policy::{AdapterLeaseRequest, ShadowOrigin};
use actix::prelude::{Context, Handler};
use minds_core::environment::AdapterLease;
use minds_core::optim::AdamParams;
use minds_core::reward::RewardError;
use minds_core::service::TrainingBackend;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

impl Handler<StageMessage<AdapterLeaseRequest>> for ShadowTrainer {
    type Result = ();

    fn handle(&mut self, message: StageMessage<AdapterLeaseRequest>, _: &mut Context<Self>) {
        let (AdapterLeaseRequest { origin, mut reply }, permit) = message.open();
        let pool = self.0.clone();
        tokio::spawn(async move {
            let leasing = async {
                tokio::select! {
                    leased = catch_panic(pool.lease(origin)) => leased.map_err(RewardError::Environment).and_then(|leased| leased),
                    () = reply.closed() => Err(RewardError::Service("the requester is gone".into())),
                }
            };
            let result = leasing.await;
            pool.board.update(NAME, |s| if result.is_ok() { s.done += 1 } else { s.failed += 1 });
            // If the requester has given up, dropping the lease returns the adapter.
            drop(reply.send(result));
            drop(permit);
        });
    }
}

impl ShadowPool {
    async fn lease(self: &Arc<Self>, origin: Option<Arc<ShadowOrigin>>) -> Result<AdapterLease, RewardError> {
        let closed = |_| RewardError::Unsupported("the shadow trainer has ended".into());
        let permit = self.permits.clone().acquire_owned().await.map_err(closed)?;
        let idle = self.lock().pop();
        let training = match idle {
            Some(shadow) => shadow,
            None => self.create().await?,
        };
        let ready = async {
            let origin = match origin {
                Some(origin) => origin,
                None => self.base(&*training).await?,
            };
            training.load_state(&origin.path().await?, false).await
        };
        if let Err(error) = ready.await {
            release(&*training).await;
            return Err(error.into());
        }
        let guard = LeaseGuard {
            pool: self.clone(),
            training: training.clone(),
            runtime: Handle::current(),
            permit: Some(permit),
        };
        Ok(AdapterLease { training, guard: Box::new(guard) })
    }
}

/// Holds a permit of the pool for the duration of a lease.
struct LeaseGuard {
    pool: Arc<ShadowPool>,
    training: Arc<dyn TrainingBackend>,
    /// Runtime of the stage: the lease may be dropped on any thread.
    runtime: Handle,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let pool = self.pool.clone();
        let training = self.training.clone();
        let permit = self.permit.take();
        let _within = self.runtime.enter();
        // A step uses up the gradients that the lease has left; the next start undoes it.
        let cleaned = training.optim_step(AdamParams::default());
        drop(self.runtime.spawn(async move {
            match cleaned.await {
                Ok(_) => pool.lock().push(training),
                Err(_) => release(&*training).await,
            }
            drop(permit);
        }));
    }
}
