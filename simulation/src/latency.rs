//! Latencies of requests: constant, or drawn from a distribution.

use minds_core::random::seeded_rng;
use rand_distr::{Distribution as _, Exp1, StandardNormal, StandardUniform};
use std::time::Duration;

/// A distribution of times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedLatency {
    mean: f64,
    distribution: LatencyDistribution,
    tail_share: f64,
    tail_factor: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LatencyDistribution {
    Constant,
    Exponential,
    Lognormal { sigma: f64 },
}

impl SimulatedLatency {
    /// A constant time in seconds.
    #[must_use]
    pub const fn constant(seconds: f64) -> Self {
        Self::new(seconds, LatencyDistribution::Constant)
    }

    /// Exponentially distributed times with a mean in seconds.
    #[must_use]
    pub const fn exponential(mean: f64) -> Self {
        Self::new(mean, LatencyDistribution::Exponential)
    }

    /// Lognormal times with a mean in seconds; `sigma` is the standard deviation of their logarithm.
    #[must_use]
    pub const fn lognormal(mean: f64, sigma: f64) -> Self {
        Self::new(mean, LatencyDistribution::Lognormal { sigma })
    }

    const fn new(mean: f64, distribution: LatencyDistribution) -> Self {
        Self { mean, distribution, tail_share: 0.0, tail_factor: 1.0 }
    }

    /// The same distribution, in which a `share` of the times is multiplied by `factor`.
    #[must_use]
    pub const fn with_tail(self, share: f64, factor: f64) -> Self {
        Self { tail_share: share, tail_factor: factor, ..self }
    }

    /// Draws the time for a key, in seconds. Equal keys give equal times.
    #[must_use]
    pub fn draw(&self, key: [u64; 4]) -> f64 {
        if self.distribution == LatencyDistribution::Constant && self.tail_share == 0.0 {
            return self.mean;
        }
        let mut chance = seeded_rng(key);
        let in_tail: f64 = StandardUniform.sample(&mut chance);
        let factor = if in_tail < self.tail_share { self.tail_factor } else { 1.0 };
        let part: f64 = match self.distribution {
            LatencyDistribution::Constant => 1.0,
            LatencyDistribution::Exponential => Exp1.sample(&mut chance),
            LatencyDistribution::Lognormal { sigma } => {
                let normal: f64 = StandardNormal.sample(&mut chance);
                // This factor has mean 1, so `mean` stays the mean of the product.
                (sigma * normal - sigma * sigma / 2.0).exp()
            }
        };
        self.mean * factor * part
    }

    /// Mean time in seconds, including the tail.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean * (1.0 + self.tail_share * (self.tail_factor - 1.0))
    }
}

impl From<Duration> for SimulatedLatency {
    fn from(time: Duration) -> Self {
        Self::constant(time.as_secs_f64())
    }
}
