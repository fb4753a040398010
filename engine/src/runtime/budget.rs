//! Budget of keys and values that may be reserved at once.
//!
//! A request reserves its worst case before it starts and releases what it did not use, so memory never exceeds
//! the budget and a started sample is never stopped for lack of memory. A reservation covers only its own request: the
//! prompt once, under all its samples, and nothing of other requests, running or finished.

use minds_core::architecture::Architecture;
use std::ops::Range;

/// Number of positions in a page of keys and values.
pub(crate) const PAGE: usize = 32;

/// Free bytes for keys and values, and free rows of the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KvBudget {
    page_bytes: usize,
    pub(crate) total_bytes: usize,
    pub(crate) free_bytes: usize,
    pub(crate) free_rows: usize,
    total_rows: usize,
}

/// Worst case of one request: the prompt once, and each sample on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvNeed {
    pub(crate) prompt_bytes: usize,
    pub(crate) row_bytes: usize,
}

impl KvBudget {
    pub(crate) fn new(arch: &Architecture, bytes: usize, rows: usize) -> Self {
        // Values are stored in panels as wide as a page.
        let width = arch.head_dim + arch.head_dim.next_multiple_of(PAGE);
        let page_bytes = arch.layers * arch.kv_heads * width * PAGE * size_of::<f32>();
        Self { page_bytes, total_bytes: bytes, free_bytes: bytes, free_rows: rows, total_rows: rows }
    }

    /// What a prompt with samples of at most `max_new` tokens reserves. The last token of a sample is never run
    /// through the model.
    pub(crate) fn need(&self, prompt: usize, max_new: usize) -> KvNeed {
        let bytes = |span: Range<usize>| {
            if span.is_empty() { 0 } else { (span.end.div_ceil(PAGE) - span.start / PAGE) * self.page_bytes }
        };
        KvNeed {
            prompt_bytes: bytes(0..prompt),
            row_bytes: bytes(prompt..prompt + max_new.saturating_sub(1)),
        }
    }

    /// Whether the request would fit if no other request ran.
    pub(crate) fn can_ever_fit(&self, need: KvNeed) -> bool {
        need.prompt_bytes + need.row_bytes <= self.total_bytes
    }

    /// Reserves a prompt with its first row.
    pub(crate) fn reserve_prompt(&mut self, need: KvNeed) -> bool {
        self.take(need.prompt_bytes + need.row_bytes)
    }

    /// Reserves another row of an open prompt.
    pub(crate) fn reserve_row(&mut self, need: KvNeed) -> bool {
        self.take(need.row_bytes)
    }

    /// Releases `rows` rows of a request.
    pub(crate) fn release_rows(&mut self, need: KvNeed, rows: usize) {
        self.free_rows += rows;
        self.free_bytes += rows * need.row_bytes;
    }

    /// Releases the prompt of a request.
    pub(crate) fn release_prompt(&mut self, need: KvNeed) {
        self.free_bytes += need.prompt_bytes;
    }

    pub(crate) fn used_rows(&self) -> usize {
        self.total_rows - self.free_rows
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.total_bytes - self.free_bytes
    }

    fn take(&mut self, bytes: usize) -> bool {
        if self.free_rows == 0 || bytes > self.free_bytes {
            return false;
        }
        self.free_rows -= 1;
        self.free_bytes -= bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_cache::KvCache;
    use crate::model::{Model, SequenceExtension, extend};
    use std::sync::Arc;

    /// A page of the tiny model: 32 positions of 2 layers, 2 heads, keys 16 wide and values padded to 32.
    const PAGE_BYTES: usize = 32 * 2 * 2 * (16 + 32) * 4;

    fn budget(pages: usize, rows: usize) -> KvBudget {
        KvBudget::new(&Architecture::tiny(), pages * PAGE_BYTES, rows)
    }

    #[test]
    fn needs_are_whole_pages_of_the_absolute_grid() {
        for (prompt, max_new, pages) in [
            (1, 1, (1, 0)),
            (32, 1, (1, 0)),
            (33, 2, (2, 1)),
            (31, 3, (1, 2)),
            (32, 33, (1, 1)),
            (32, 34, (1, 2)),
            (40, 0, (2, 0)),
        ] {
            let need = budget(0, 0).need(prompt, max_new);
            let found = (need.prompt_bytes / PAGE_BYTES, need.row_bytes / PAGE_BYTES);
            assert_eq!(found, pages, "{prompt} + {max_new}");
        }
    }

    #[test]
    fn what_is_reserved_is_what_is_used() {
        let model = Model::<f32>::random(Architecture::tiny(), 0).unwrap();
        for (prompt, new) in [(1, 2), (31, 3), (32, 33), (40, 60), (64, 64)] {
            let need = KvBudget::new(model.architecture(), 0, 0).need(prompt, new);
            let mut root = KvCache::root(model.architecture());
            let tokens = vec![1; prompt.max(new)];
            extend(
                &model,
                &mut [SequenceExtension { adapter: None, tokens: &tokens[..prompt], kv: &mut root }],
            )
            .unwrap();
            assert_eq!(root.bytes(), need.prompt_bytes);
            let mut row = KvCache::child(Arc::new(root));
            for token in &tokens[..new - 1] {
                let tokens = std::slice::from_ref(token);
                extend(&model, &mut [SequenceExtension { adapter: None, tokens, kv: &mut row }]).unwrap();
            }
            assert_eq!(row.bytes(), need.row_bytes, "{prompt} + {new}");
        }
    }

    #[test]
    fn reservations_never_exceed_bytes_or_rows_and_are_returned_whole() {
        let mut b = budget(5, 3);
        let fresh = b.clone();
        let need = b.need(32, 33);
        assert!(b.reserve_prompt(need));
        assert!(b.reserve_row(need));
        assert!(b.reserve_row(need));
        assert!(!b.reserve_row(need), "no row is free");
        b.release_rows(need, 1);
        assert!(!b.reserve_prompt(b.need(64, 33)), "2 of 5 pages are free, 3 needed");
        assert!(b.reserve_prompt(b.need(32, 33)));
        assert_eq!((b.used_rows(), b.used_bytes()), (3, 5 * PAGE_BYTES));
        b.release_rows(need, 3);
        b.release_prompt(need);
        b.release_prompt(need);
        assert_eq!(b, fresh);
    }

    #[test]
    fn what_can_never_fit_is_known_beforehand() {
        let b = budget(4, 1);
        assert!(b.can_ever_fit(b.need(96, 33)));
        assert!(!b.can_ever_fit(b.need(97, 33)));
        assert!(!b.can_ever_fit(b.need(96, 65)));
    }
}
