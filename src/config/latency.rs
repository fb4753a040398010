//! Times of the scripted service of `simulate`: constant, or drawn from a distribution.

use super::choice::{Choice, chosen};
use minds_core::number::ShortNumber;
use minds_simulation::SimulatedLatency;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

/// Longest time in seconds, and largest factor.
pub(super) const MOST_SECONDS: f64 = 1e6;

/// A distribution of times in seconds, as a config sets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencySetting(pub SimulatedLatency);

impl Deref for LatencySetting {
    type Target = SimulatedLatency;

    fn deref(&self) -> &SimulatedLatency {
        &self.0
    }
}

impl LatencySetting {
    /// A constant number of seconds.
    #[must_use]
    pub const fn constant(seconds: f64) -> Self {
        Self(SimulatedLatency::constant(seconds))
    }

    /// Checks a written distribution; an error says what is wrong with it.
    fn decide(table: &LatencyTable) -> Result<Self, String> {
        let mean = table.mean;
        if !(0.0..=MOST_SECONDS).contains(&mean) {
            return Err(format!("is {} s; it must lie between 0 and {MOST_SECONDS}", ShortNumber(mean)));
        }
        let tail_share = table.tail_share.unwrap_or(0.0);
        let tail_factor = table.tail_factor.unwrap_or(10.0);
        if !(0.0..=1.0).contains(&tail_share) || !(0.0..=MOST_SECONDS).contains(&tail_factor) {
            return Err(format!(
                "needs a `tail_share` in [0, 1] and a `tail_factor` between 0 and {MOST_SECONDS}"
            ));
        }
        let latency = match (chosen(table.spread), table.sigma) {
            (DistributionKind::Constant, None) => SimulatedLatency::constant(mean),
            (DistributionKind::Exponential, None) => SimulatedLatency::exponential(mean),
            (DistributionKind::Lognormal, sigma) => {
                let sigma = sigma.unwrap_or(1.0);
                if !(0.0..=4.0).contains(&sigma) {
                    let sigma = ShortNumber(sigma);
                    return Err(format!("has a `sigma` of {sigma}; it must lie between 0 and 4"));
                }
                SimulatedLatency::lognormal(mean, sigma)
            }
            (_, Some(_)) => return Err("has a `sigma`, which is for spread = \"lognormal\"".into()),
        };
        Ok(Self(latency.with_tail(tail_share, tail_factor)))
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
impl<'de> Deserialize<'de> for LatencySetting {
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

impl JsonSchema for LatencySetting {
    fn schema_name() -> Cow<'static, str> {
        "SimulatedLatency".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "number" }, generator.subschema_for::<LatencyTable>()] })
    }
}
