//! Which rows of a file are held out.
//!
//! It depends on the content of a row alone, so that adding, removing or moving rows never moves another one to the other
//! side.

use super::Columns;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// Whether a row is among the share that is held out.
pub(crate) fn is_held_out(columns: &Columns, share: f64) -> bool {
    place(columns) < share
}

/// Where a row stands between 0 and 1, evenly over all rows.
pub(crate) fn place(columns: &Columns) -> f64 {
    let digest = Sha256::digest(canonical(columns));
    let first: [u8; 8] = std::array::from_fn(|i| digest[i]);
    // The upper 53 bits are exact as a float.
    (u64::from_be_bytes(first) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A row as JSON with the keys in order at every depth, so that the order in the file has no effect.
fn canonical(columns: &Columns) -> Vec<u8> {
    let sorted: BTreeMap<&String, Value> = columns.iter().map(|(key, value)| (key, sorted(value))).collect();
    serde_json::to_vec(&sorted).unwrap_or_default()
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(values) => values.iter().map(sorted).collect(),
        Value::Object(map) => {
            let ordered: BTreeMap<&String, &Value> = map.iter().collect();
            Value::Object(
                ordered.into_iter().map(|(key, value)| (key.clone(), self::sorted(value))).collect(),
            )
        }
        _ => value.clone(),
    }
}
