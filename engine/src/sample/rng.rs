//! Random numbers by index: the `n`-th token of sample `i` always uses the same one.

use crate::adapter::unit;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::atomic::{AtomicU64, Ordering};

/// The random numbers of one sample: stream `index` of ChaCha8 under the request's seed, one number per token.
#[derive(Clone, Debug)]
pub struct SampleRng(ChaCha8Rng);

impl SampleRng {
    /// The stream of sample `index`.
    #[must_use]
    pub fn new(seed: u64, index: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(index);
        Self(random)
    }

    /// The next number, uniform in [0, 1).
    pub fn next_unit(&mut self) -> f64 {
        unit(&mut self.0)
    }
}

/// Seeds for requests without one: the `n`-th request of an engine always gets the same one.
#[derive(Debug)]
pub struct RequestSeeds {
    seed: u64,
    given: AtomicU64,
}

impl RequestSeeds {
    /// The stream of seeds under the engine's own seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, given: AtomicU64::new(0) }
    }

    /// Returns the next seed and advances the stream.
    pub fn next_seed(&self) -> u64 {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(self.given.fetch_add(1, Ordering::Relaxed));
        random.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let firsts: Vec<f64> = (0..100).map(|i| SampleRng::new(7, i).next_unit()).collect();
        assert_eq!(firsts, (0..100).map(|i| SampleRng::new(7, i).next_unit()).collect::<Vec<_>>());
        let mut sorted = firsts.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        assert_eq!(sorted.len(), 100);
        assert!(firsts.iter().all(|x| (0.0..1.0).contains(x)));
        assert_ne!(firsts[0], SampleRng::new(8, 0).next_unit());
    }

    #[test]
    fn seeds_follow_the_engine_seed_and_never_stand_still() {
        let a = RequestSeeds::new(1);
        let b = RequestSeeds::new(1);
        let c = RequestSeeds::new(2);
        let of = |s: &RequestSeeds| (0..3).map(|_| s.next_seed()).collect::<Vec<_>>();
        let a = of(&a);
        let b = of(&b);
        let c = of(&c);
        assert_eq!(a, b);
        assert_ne!(a, c);
        assert!(a[0] != a[1] && a[1] != a[2]);
    }
}
