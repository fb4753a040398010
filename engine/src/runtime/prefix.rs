//! Keys and values of recent prompts, for prompts with a common prefix.
//!
//! Reuse changes no bit of any result: keys and values of a position depend only on the tokens up to it. The cache
//! is bounded in bytes; the least recently used entry is evicted first. A prompt copies the prefix that it reuses,
//! which is cheap compared with computing it, so that an evicted prefix keeps no memory alive.

use super::budget::PAGE;
use crate::kv_cache::KvCache;
use minds_core::ids::Token;
use std::sync::Arc;

/// Recent prompts by weights and tokens.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    limit: usize,
    bytes: usize,
    /// Least recently used first.
    entries: Vec<CachedPrefix>,
}

#[derive(Debug)]
struct CachedPrefix {
    snapshot: u64,
    tokens: Arc<[Token]>,
    logprobs: Option<Arc<[Option<f32>]>>,
    kv: Arc<KvCache<f32>>,
}

/// What a request wants to know of the positions of its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PromptScores {
    /// The first token whose logprob is returned.
    pub(crate) from: usize,
    /// Whether more is returned of a position than the logprob of the prompt's own token, so that it must be computed.
    pub(crate) rows: bool,
}

/// The cached prefix of a prompt.
#[derive(Clone, Debug)]
pub(crate) struct PrefixHit {
    /// Number of cached positions to reuse.
    pub(crate) len: usize,
    /// Cached sequence that holds their keys and values.
    pub(crate) from: Arc<KvCache<f32>>,
    /// Logprobs of the tokens up to and including position `len`, if any of them is returned.
    pub(crate) logprobs: Option<Arc<[Option<f32>]>>,
}

impl PrefixCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, entries: Vec::new() }
    }

    /// Whether a prompt of this size in bytes fits the cache.
    pub(crate) fn accepts(&self, bytes: usize) -> bool {
        bytes <= self.limit
    }

    /// The longest cached prefix of `tokens`, in whole pages and without the last token, that leaves every position to
    /// be computed that is scored and not known.
    pub(crate) fn find(
        &mut self,
        snapshot: u64,
        tokens: &[Token],
        scores: Option<PromptScores>,
    ) -> Option<PrefixHit> {
        let usable = |e: &CachedPrefix| match e.snapshot == snapshot {
            true => reusable(&e.tokens, tokens, scores, e.logprobs.is_some()),
            false => 0,
        };
        let (index, len) = self.entries.iter().map(usable).enumerate().max_by_key(|(_, len)| *len)?;
        if len == 0 {
            return None;
        }
        let entry = self.entries.remove(index);
        let returned = scores.is_some_and(|scores| len >= scores.from);
        let hit =
            PrefixHit { len, from: entry.kv.clone(), logprobs: entry.logprobs.clone().filter(|_| returned) };
        self.entries.push(entry);
        Some(hit)
    }

    /// Caches a prompt, unless it is too large or already cached.
    pub(crate) fn keep(
        &mut self,
        snapshot: u64,
        tokens: &Arc<[Token]>,
        logprobs: Option<Arc<[Option<f32>]>>,
        kv: &Arc<KvCache<f32>>,
    ) {
        let bytes = kv.bytes();
        if tokens.len() <= PAGE || bytes > self.limit {
            return;
        }
        let covers = |e: &CachedPrefix| {
            e.snapshot == snapshot
                && e.tokens.starts_with(tokens)
                && (logprobs.is_none() || e.logprobs.is_some())
        };
        if self.entries.iter().any(covers) {
            return;
        }
        while self.bytes + bytes > self.limit {
            let oldest = self.entries.remove(0);
            self.bytes -= oldest.kv.bytes();
        }
        self.bytes += bytes;
        self.entries.push(CachedPrefix { snapshot, tokens: tokens.clone(), logprobs, kv: kv.clone() });
    }
}

/// Number of leading positions of `tokens` that a cached prompt can serve; `known` says whether its logprobs are cached.
pub(crate) fn reusable(kept: &[Token], tokens: &[Token], scores: Option<PromptScores>, known: bool) -> usize {
    let common = kept.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    let limit = match scores {
        None => common,
        Some(PromptScores { from, rows }) => {
            // The logprob of the token at `len` comes from the position before it, which is not computed. So it is not
            // returned, or the cached prompt continues with the same token and its logprob is known.
            let unreturned = common.min(from.saturating_sub(1));
            if known && !rows { unreturned.max(common.saturating_sub(1)) } else { unreturned }
        }
    };
    // The last position is computed for its logits.
    limit.min(tokens.len().saturating_sub(1)) / PAGE * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, SequenceExtension, extend};
    use minds_core::architecture::Architecture;

    /// Keys and values of `pages` pages.
    fn kv(pages: usize) -> Arc<KvCache<f32>> {
        let model = Model::random(Architecture::tiny(), 0).unwrap();
        let tokens = vec![1; pages * PAGE];
        let mut kv = KvCache::root(model.architecture());
        extend(&model, &mut [SequenceExtension { adapter: None, tokens: &tokens, kv: &mut kv }]).unwrap();
        Arc::new(kv)
    }

    const ALL: Option<PromptScores> = Some(PromptScores { from: 0, rows: false });

    fn prompt(len: u32) -> Arc<[Token]> {
        (0..len).collect()
    }

    #[test]
    fn reuse_is_whole_pages_short_of_the_last_token() {
        let kept = prompt(100);
        let mut other: Vec<Token> = kept.to_vec();
        other[70] = 1000;
        for (tokens, scores, len) in [
            (&kept[..], None, 96),
            (&kept[..97], None, 96),
            (&kept[..96], None, 64),
            (&kept[..97], ALL, 96),
            (&kept[..96], ALL, 64),
            (&other[..], None, 64),
            (&kept[..32], None, 0),
            (&kept[..0], None, 0),
        ] {
            assert_eq!(reusable(&kept, tokens, scores, true), len, "{} {scores:?}", tokens.len());
        }
        // Token 64 differs: the kept logprob at 64 is that of another token.
        other[64] = 1000;
        assert_eq!(reusable(&kept, &other, None, true), 64);
        assert_eq!(reusable(&kept, &other, ALL, true), 32);
    }

    #[test]
    fn positions_before_the_scored_tokens_are_reused_without_their_logprobs() {
        let kept = prompt(100);
        let last = |n: usize, rows| Some(PromptScores { from: 100 - n, rows });
        assert_eq!(reusable(&kept, &kept, last(3, false), false), 96);
        // Token 96 would be scored by position 95.
        assert_eq!(reusable(&kept, &kept, last(4, false), false), 64);
        assert_eq!(reusable(&kept, &kept, last(4, false), true), 96);
        assert_eq!(reusable(&kept, &kept, last(4, true), true), 64);
        assert_eq!(reusable(&kept, &kept, Some(PromptScores { from: 0, rows: true }), true), 0);
    }

    #[test]
    fn weights_are_never_confused_and_scores_only_served_where_known() {
        let kv = kv(3);
        let mut cache = PrefixCache::new(2 * kv.bytes());
        cache.keep(1, &prompt(80), None, &kv);
        assert_eq!(cache.find(1, &prompt(80), None).unwrap().len, 64);
        assert!(cache.find(2, &prompt(80), None).is_none());
        assert!(cache.find(1, &prompt(80), ALL).is_none());
        cache.keep(1, &prompt(80), Some(vec![None; 80].into()), &kv);
        assert_eq!(cache.find(1, &prompt(80), ALL).unwrap().len, 64);
    }

    #[test]
    fn the_least_recently_used_goes_first_and_bytes_stay_bounded() {
        let two = kv(2);
        let seven = kv(7);
        let mut cache = PrefixCache::new(3 * two.bytes());
        for snapshot in 0..3 {
            cache.keep(snapshot, &prompt(64), None, &two);
        }
        assert!(cache.find(0, &prompt(64), None).is_some());
        cache.keep(3, &prompt(64), None, &two);
        assert_eq!(cache.bytes, 3 * two.bytes());
        let found: Vec<bool> = (0..4).map(|s| cache.find(s, &prompt(64), None).is_some()).collect();
        assert_eq!(found, [true, false, true, true]);
        cache.keep(4, &prompt(224), None, &seven);
        assert!(cache.find(4, &prompt(224), None).is_none());
        cache.keep(3, &prompt(60), None, &two);
        assert_eq!(cache.entries.len(), 3, "a beginning of what is kept adds nothing");
    }
}
