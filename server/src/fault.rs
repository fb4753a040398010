//! Faults that requests meet on purpose, to try clients.

use std::fmt;
use std::sync::Arc;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// It is refused with status 429.
    TooManyRequests,
    /// It is refused with status 503.
    Unavailable,
    /// It is processed, and its connection breaks in the middle of the response.
    Reset,
    /// A request whose result is fetched later is accepted but not processed, and fetching the result gets status 410.
    Gone,
    /// It never gets a response.
    Hang,
}

/// The fault of a request by its path.
type ChooseFault = dyn Fn(&str) -> Option<InjectedFault> + Send + Sync;

/// Chooses the faults of requests by their paths below the API's prefix, such as `/asample`.
#[derive(Clone)]
pub struct FaultInjector(Arc<ChooseFault>);

impl FaultInjector {
    /// Calls `choose` once for every request.
    #[must_use]
    pub fn new(choose: impl Fn(&str) -> Option<InjectedFault> + Send + Sync + 'static) -> Self {
        Self(Arc::new(choose))
    }

    /// The fault of the next request to this path.
    pub(crate) fn choose(&self, path: &str) -> Option<InjectedFault> {
        (self.0)(path)
    }
}

impl fmt::Debug for FaultInjector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultInjector")
    }
}
