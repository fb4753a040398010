//! A scripted service behind the Tinker API, for trying and timing clients: `serve --simulated`.
//!
//! The service gives every client the same latencies for the same prompts. Its samples carry their numbers, so it
//! recognizes them in training data, and measures staleness and waste itself, whatever the client reports.

mod faults;
mod figures;
mod summary;
mod traffic;

pub use summary::TrafficSummary;
pub use traffic::Traffic;

use crate::config::simulated_service::SimulatedServiceFile;
use crate::simulate::EventLog;
use minds_server::FaultInjector;
use minds_simulation::{SimulatedService, SimulationOptions};
use std::sync::Arc;
use std::time::SystemTime;
use summary::SteadySteps;

/// A scripted service, its faults, and what is measured of it.
pub struct MeasuredService {
    /// The service, to be put behind a server.
    pub service: Arc<SimulatedService>,
    /// Faults of the server before it.
    pub faults: Option<FaultInjector>,
    /// What clients did with it.
    pub traffic: Arc<Traffic>,
}

/// Starts the service of a file, whose events go to `log`.
#[must_use]
pub fn start(file: &SimulatedServiceFile, log: EventLog, wall_clock: fn() -> SystemTime) -> MeasuredService {
    let steady = SteadySteps { warm_up_steps: file.warm_up_steps, cool_down_steps: file.cool_down_steps };
    let traffic = Arc::new(Traffic::new(log, steady));
    let [observed, trained] = [traffic.clone(), traffic.clone()];
    let service = SimulatedService::new(SimulationOptions {
        observer: Box::new(move |request, progress| observed.observe(request, progress)),
        on_trained: Box::new(move |data| trained.record_trained(data)),
        wall_clock,
        ..file.options()
    });
    MeasuredService { service: Arc::new(service), faults: faults::injector(file, traffic.clone()), traffic }
}
