//! Which rows of a file are used.
//!
//! Whether a row is held out depends on its own content, so adding, removing or moving rows never moves another one to
//! the other side.

use super::RenderedRow;
use super::rows::Columns;
use minds_core::chat::Message;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, HashSet};

/// A part of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DataSplit {
    /// All but those that are held out.
    Train,
    /// Those that are held out.
    HeldOut,
    /// Every row, held out or not.
    All,
}

impl DataSplit {
    /// The name that configs use.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::HeldOut => "held_out",
            Self::All => "all",
        }
    }
}

/// Which rows are used.
pub(super) struct Selection {
    pub split: DataSplit,
    pub held_out: f64,
    pub dedupe: bool,
    /// Most rows of the split; 0 for all.
    pub limit: usize,
}

/// The rows that are used, in the order of the file.
pub(super) struct SelectedRows {
    pub rows: Vec<RenderedRow>,
    /// Rows that were dropped because an earlier row has the same prompt.
    pub duplicates: usize,
}

impl Selection {
    /// Selects rows. Duplicates are dropped first, so that no prompt is on both sides.
    pub(super) fn apply(&self, rows: Vec<RenderedRow>) -> SelectedRows {
        let mut seen = HashSet::new();
        let all = rows.len();
        let unique: Vec<RenderedRow> =
            rows.into_iter().filter(|row| !self.dedupe || seen.insert(prompt_digest(&row.prompt))).collect();
        let duplicates = all - unique.len();
        let limit = if self.limit == 0 { usize::MAX } else { self.limit };
        let rows = unique.into_iter().filter(|row| self.uses(&row.row.columns)).take(limit).collect();
        SelectedRows { rows, duplicates }
    }

    fn uses(&self, columns: &Columns) -> bool {
        match self.split {
            DataSplit::All => true,
            DataSplit::Train => !self.is_held_out(columns),
            DataSplit::HeldOut => self.is_held_out(columns),
        }
    }

    fn is_held_out(&self, columns: &Columns) -> bool {
        let digest = Sha256::digest(canonical(columns));
        let first: [u8; 8] = std::array::from_fn(|i| digest[i]);
        // The upper 53 bits are exact as a float.
        let place = (u64::from_be_bytes(first) >> 11) as f64 / (1_u64 << 53) as f64;
        place < self.held_out
    }
}

fn prompt_digest(prompt: &[Message]) -> [u8; 32] {
    Sha256::digest(serde_json::to_vec(prompt).unwrap_or_default()).into()
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
