//! Faults of the server before a scripted service, drawn by the number of requests to each path.

use super::traffic::Traffic;
use crate::config::simulated_service::SimulatedServiceFile;
use minds_core::random::seeded_rng;
use minds_server::{FaultInjector, InjectedFault};
use parking_lot::Mutex;
use rand::RngExt as _;
use std::collections::HashMap;
use std::sync::Arc;

const SAMPLE: &str = "/asample";

/// The faults of a file; `None` if it has none that concern the server.
pub fn injector(file: &SimulatedServiceFile, traffic: Arc<Traffic>) -> Option<FaultInjector> {
    let shares = [
        (InjectedFault::Unavailable, file.unavailable, false),
        (InjectedFault::Reset, file.resets, false),
        (InjectedFault::TooManyRequests, file.too_many_requests, true),
        (InjectedFault::Gone, file.gone, true),
    ];
    if file.outages.is_empty() && shares.iter().all(|(_, share, _)| *share == 0.0) {
        return None;
    }
    let outages = file.outages.clone();
    let seed = file.seed;
    let requests = Mutex::new(HashMap::<String, u64>::new());
    Some(FaultInjector::new(move |path| {
        let now = traffic.elapsed();
        let away = outages.iter().any(|outage| (outage.at_s..outage.at_s + outage.for_s).contains(&now));
        let fault =
            if away { Some(InjectedFault::Unavailable) } else { draw(seed, &requests, &shares, path) };
        if let Some(fault) = fault {
            traffic.record_fault(fault, path);
        }
        fault
    }))
}

/// Draws the fault of the next request to this path. Shares that are `true` concern sample requests only.
fn draw(
    seed: u64,
    requests: &Mutex<HashMap<String, u64>>,
    shares: &[(InjectedFault, f64, bool)],
    path: &str,
) -> Option<InjectedFault> {
    let number = {
        let mut requests = requests.lock();
        let number = requests.entry(path.into()).or_default();
        *number += 1;
        *number
    };
    let of_path = path.bytes().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let mut chance = seeded_rng([seed, of_path, number, 1]);
    let mut drawn = chance.random::<f64>();
    let concerned = shares.iter().filter(|(.., samples_only)| !samples_only || path == SAMPLE);
    for (fault, share, _) in concerned {
        if drawn < *share {
            return Some(*fault);
        }
        drawn -= share;
    }
    None
}
