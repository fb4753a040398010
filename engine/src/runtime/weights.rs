//! The weights of a sampling request: fixed ones, or those of a target that training replaces while requests run.

use crate::adapter::AdapterWeights;
use minds_core::ids::PolicyVersion;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An adapter that never changes, with an id for the prefix cache.
#[derive(Debug)]
pub struct AdapterSnapshot {
    id: u64,
    weights: AdapterWeights<f32>,
}

impl AdapterSnapshot {
    /// Wraps the weights under a new id.
    #[must_use]
    pub fn new(weights: AdapterWeights<f32>) -> Self {
        // 0 is the base model without an adapter.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), weights }
    }

    /// Weights of the adapter.
    #[must_use]
    pub fn weights(&self) -> &AdapterWeights<f32> {
        &self.weights
    }
}

/// Keys and values of what a request has read and sampled, when new weights take over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SwapKv {
    /// They are kept: later tokens attend to keys and values of older weights.
    #[default]
    Keep,
    /// They are computed again under the new weights, so that a token's logprob is the one that its version gives.
    Recompute,
}

/// Weights with the name that they were published under.
#[derive(Clone, Debug)]
pub(crate) struct PublishedWeights {
    pub(crate) snapshot: Arc<AdapterSnapshot>,
    pub(crate) version: PolicyVersion,
}

/// The weights that all in-flight samplers of an adapter share. A running request takes new ones between two tokens.
#[derive(Debug)]
pub struct InFlightTarget(Mutex<PublishedWeights>);

impl InFlightTarget {
    /// A target whose first weights are these.
    #[must_use]
    pub fn new(snapshot: Arc<AdapterSnapshot>, version: PolicyVersion) -> Self {
        Self(Mutex::new(PublishedWeights { snapshot, version }))
    }

    /// Replaces the weights, also for requests that are being sampled.
    pub fn publish(&self, snapshot: Arc<AdapterSnapshot>, version: PolicyVersion) {
        *self.0.lock() = PublishedWeights { snapshot, version };
    }

    pub(crate) fn newest(&self) -> PublishedWeights {
        self.0.lock().clone()
    }
}

/// What a request samples from.
#[derive(Clone, Debug)]
pub enum SamplingWeights {
    /// The base model without an adapter.
    Base,
    /// An adapter that never changes.
    Snapshot(Arc<AdapterSnapshot>),
    /// The newest weights of a target.
    InFlight(Arc<InFlightTarget>),
}

impl SamplingWeights {
    /// Memory in bytes that the weights take, without the base model.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Base => 0,
            Self::Snapshot(snapshot) => snapshot.weights.bytes(),
            Self::InFlight(target) => target.newest().snapshot.weights.bytes(),
        }
    }

    /// The weights of this moment.
    pub(crate) fn now(&self) -> CurrentWeights {
        match self {
            Self::Base => CurrentWeights { snapshot: None, version: None },
            Self::Snapshot(snapshot) => CurrentWeights { snapshot: Some(snapshot.clone()), version: None },
            Self::InFlight(target) => {
                let PublishedWeights { snapshot, version } = target.newest();
                CurrentWeights { snapshot: Some(snapshot), version: Some(version) }
            }
        }
    }

    /// Whether the weights of this moment are not these.
    pub(crate) fn have_replaced(&self, weights: &CurrentWeights) -> bool {
        match self {
            Self::Base | Self::Snapshot(_) => false,
            Self::InFlight(target) => target.newest().snapshot.id != weights.id(),
        }
    }
}

/// The weights that a request uses until it takes others.
#[derive(Clone, Debug)]
pub(crate) struct CurrentWeights {
    snapshot: Option<Arc<AdapterSnapshot>>,
    /// Name of the weights, where others can follow.
    pub(crate) version: Option<PolicyVersion>,
}

impl CurrentWeights {
    /// Id for the prefix cache.
    pub(crate) fn id(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.id)
    }

    pub(crate) fn adapter(&self) -> Option<&AdapterWeights<f32>> {
        self.snapshot.as_deref().map(AdapterSnapshot::weights)
    }
}
