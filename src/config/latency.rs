//! Times of the scripted service of `simulate`: constant, or drawn from a distribution.

use super::choice::{Choice, chosen};
use minds_core::random::seeded_rng;
use rand_distr::{Distribution as _, Exp1, LogNormal, StandardUniform};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Longest time in seconds, and largest factor.
pub(super) const MOST_SECONDS: f64 = 1e6;

/// A distribution of times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedLatency {
    mean: f64,
    spread: LatencyDistribution,
    tail_share: f64,
    tail_factor: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LatencyDistribution {
    Constant,
    Exponential,
    Lognormal(LogNormal<f64>),
}

impl SimulatedLatency {
    /// A constant number of seconds.
    #[must_use]
    pub fn constant(seconds: f64) -> Self {
        Self { mean: seconds, spread: LatencyDistribution::Constant, tail_share: 0.0, tail_factor: 1.0 }
    }

    /// Draws the time in seconds of the case with this key: equal keys give equal times.
    #[must_use]
    pub fn draw(&self, key: [u64; 4]) -> f64 {
        let mut chance = seeded_rng(key);
        let in_tail: f64 = StandardUniform.sample(&mut chance);
        let factor = if in_tail < self.tail_share { self.tail_factor } else { 1.0 };
        let part: f64 = match self.spread {
            LatencyDistribution::Constant => 1.0,
            LatencyDistribution::Exponential => Exp1.sample(&mut chance),
            LatencyDistribution::Lognormal(one) => one.sample(&mut chance),
        };
        self.mean * factor * part
    }

    /// Mean in seconds, including the tail.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean * (1.0 + self.tail_share * (self.tail_factor - 1.0))
    }

    /// Checks a written distribution; an error says what is wrong with it.
    fn decide(table: &LatencyTable) -> Result<Self, String> {
        let mean = table.mean;
        if !(0.0..=MOST_SECONDS).contains(&mean) {
            return Err(format!("is {mean} s, it must lie between 0 and {MOST_SECONDS}"));
        }
        let tail_share = table.tail_share.unwrap_or(0.0);
        let tail_factor = table.tail_factor.unwrap_or(10.0);
        if !(0.0..=1.0).contains(&tail_share) || !(0.0..=MOST_SECONDS).contains(&tail_factor) {
            return Err("needs a `tail_share` in [0, 1] and a `tail_factor` that is not negative".into());
        }
        let spread = distribution(chosen(table.spread), table.sigma)?;
        Ok(Self { mean, spread, tail_share, tail_factor })
    }
}

fn distribution(kind: DistributionKind, sigma: Option<f64>) -> Result<LatencyDistribution, String> {
    match (kind, sigma) {
        (DistributionKind::Constant, None) => Ok(LatencyDistribution::Constant),
        (DistributionKind::Exponential, None) => Ok(LatencyDistribution::Exponential),
        (DistributionKind::Lognormal, sigma) => {
            let sigma = sigma.unwrap_or(1.0);
            if !(0.0..=4.0).contains(&sigma) {
                return Err(format!("has a `sigma` of {sigma}, it must lie between 0 and 4"));
            }
            // A factor of mean 1, so that `mean` stays the mean.
            let one = LogNormal::new(-sigma * sigma / 2.0, sigma);
            one.map(LatencyDistribution::Lognormal).map_err(|error| error.to_string())
        }
        (_, Some(_)) => Err("has a `sigma`, which is for spread = \"lognormal\"".into()),
    }
}

/// A distribution of times, as a config writes it.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LatencyTable {
    /// Mean in seconds, without the tail.
    mean: f64,
    /// Kind of the distribution.
    spread: Option<Choice<DistributionKind>>,
    /// Standard deviation of the logarithm.
    sigma: Option<f64>,
    /// Share of the cases in the tail, which take longer.
    tail_share: Option<f64>,
    /// Factor by which the cases in the tail take longer.
    tail_factor: Option<f64>,
}

/// Kind of a distribution of times, as configs name it.
#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DistributionKind {
    #[default]
    Constant,
    Exponential,
    Lognormal,
}

/// A number of seconds, or a table.
impl<'de> Deserialize<'de> for SimulatedLatency {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let table = from.deserialize_any(LatencyVisitor)?;
        Self::decide(&table).map_err(D::Error::custom)
    }
}

struct LatencyVisitor;

impl<'de> Visitor<'de> for LatencyVisitor {
    type Value = LatencyTable;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = "`mean` and `spread`, `sigma`, `tail_share`, `tail_factor`";
        write!(f, "a number of seconds, or a table with {keys}")
    }

    fn visit_i64<E: Error>(self, seconds: i64) -> Result<LatencyTable, E> {
        self.visit_f64(seconds as f64)
    }

    fn visit_f64<E: Error>(self, mean: f64) -> Result<LatencyTable, E> {
        Ok(LatencyTable { mean, ..LatencyTable::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<LatencyTable, A::Error> {
        LatencyTable::deserialize(MapAccessDeserializer::new(table))
    }
}

impl JsonSchema for SimulatedLatency {
    fn schema_name() -> Cow<'static, str> {
        "SimulatedLatency".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "number" }, generator.subschema_for::<LatencyTable>()] })
    }
}
