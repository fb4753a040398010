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
    let shares = shares(file);
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

/// Shares of the requests. Those that are `true` concern sample requests only.
fn shares(file: &SimulatedServiceFile) -> [(InjectedFault, f64, bool); 4] {
    [
        (InjectedFault::Unavailable, file.unavailable, false),
        (InjectedFault::Reset, file.resets, false),
        (InjectedFault::TooManyRequests, file.too_many_requests, true),
        (InjectedFault::Gone, file.gone, true),
    ]
}

/// Draws the fault of the next request to this path.
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

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: usize = 4000;

    /// The faults of requests to a path, in their order.
    fn faults(file: &SimulatedServiceFile, path: &str) -> Vec<Option<InjectedFault>> {
        let shares = shares(file);
        let requests = Mutex::default();
        (0..REQUESTS).map(|_| draw(file.seed, &requests, &shares, path)).collect()
    }

    /// Fails if a share is farther from its key than four standard deviations of independent draws.
    fn check<'a>(
        faults: impl Iterator<Item = &'a Option<InjectedFault>> + Clone,
        fault: InjectedFault,
        key: f64,
    ) {
        let all = faults.clone().count() as f64;
        let share = faults.filter(|met| **met == Some(fault)).count() as f64 / all;
        assert!(
            (share - key).abs() <= 4.0 * (key * (1.0 - key) / all).sqrt(),
            "{fault:?}: {share}, not {key}"
        );
    }

    #[test]
    fn the_shares_of_faults_are_those_of_the_file() {
        for seed in 0..5 {
            let file = SimulatedServiceFile {
                seed,
                unavailable: 0.2,
                resets: 0.1,
                too_many_requests: 0.3,
                gone: 0.4,
                ..SimulatedServiceFile::default()
            };
            let samples = faults(&file, SAMPLE);
            let passes = faults(&file, "/forward_backward");
            for (fault, of_samples, of_passes) in [
                (InjectedFault::Unavailable, 0.2, 0.2),
                (InjectedFault::Reset, 0.1, 0.1),
                (InjectedFault::TooManyRequests, 0.3, 0.0),
                (InjectedFault::Gone, 0.4, 0.0),
            ] {
                check(samples.iter(), fault, of_samples);
                check(passes.iter(), fault, of_passes);
                // A request that is sent again has a draw of its own.
                let refused =
                    |pair: &&[Option<InjectedFault>]| pair[0] == Some(InjectedFault::TooManyRequests);
                check(samples.windows(2).filter(refused).map(|pair| &pair[1]), fault, of_samples);
            }
        }
    }
}
