//! Which rows of a file are used.
//!
//! Whether a row is held out depends on its own content, so adding, removing or moving rows never moves another one to
//! the other side.

use super::RenderedRow;
use crate::rows::{Columns, is_held_out};
use minds_core::chat::Message;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;

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
            DataSplit::Train => !is_held_out(columns, self.held_out),
            DataSplit::HeldOut => is_held_out(columns, self.held_out),
        }
    }
}

fn prompt_digest(prompt: &[Message]) -> [u8; 32] {
    Sha256::digest(serde_json::to_vec(prompt).unwrap_or_default()).into()
}
