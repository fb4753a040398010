//! Which rows a training pass computes: data with a common beginning share its rows.
//!
//! Data are arranged in families of one prefix and its members, chosen so that as few rows as possible are
//! computed, and families in micro-batches of bounded size. Every position that is needed has exactly one row.

use crate::attention::SequenceNode;
use minds_core::ids::Token;
use std::ops::Range;

/// Below, a shared prefix costs more than it saves.
const SHORTEST_PREFIX: usize = 8;

/// The rows that a pass needs of one datum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatumNeed<'a> {
    /// Its input, cut after the last position needed.
    pub(crate) input: &'a [Token],
    /// Whether gradients flow through its rows.
    pub(crate) trained: bool,
}

/// Data whose inputs begin with the same tokens.
#[derive(Clone, Debug, PartialEq)]
struct PrefixFamily {
    prefix: usize,
    members: Vec<usize>,
}

/// The rows of one micro-batch. Rows through which gradients flow come first.
#[derive(Debug)]
pub(crate) struct MicroBatch {
    /// All prefixes and members that have rows.
    pub(crate) nodes: Vec<SequenceNode>,
    /// Nodes and rows that gradients flow through.
    pub(crate) trained_nodes: usize,
    pub(crate) trained_rows: usize,
    /// Token of each row.
    pub(crate) tokens: Vec<Token>,
    /// Per datum in this micro-batch: its rows, prefix and own.
    pub(crate) members: Vec<(usize, Range<usize>, Range<usize>)>,
}

impl MicroBatch {
    /// Position of each row in its sequence.
    pub(crate) fn positions(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().flat_map(|n| n.position..n.position + n.rows.len())
    }

    fn push(&mut self, tokens: &[Token], position: usize, prefix: Range<usize>) -> Range<usize> {
        let rows = self.tokens.len()..self.tokens.len() + tokens.len();
        self.tokens.extend_from_slice(tokens);
        if !tokens.is_empty() {
            self.nodes.push(SequenceNode { rows: rows.clone(), position, prefix });
        }
        rows
    }
}

/// Arranges data in micro-batches of at most `cap` rows (more only where one datum alone is longer). Trained
/// families and those without gradients are never in the same micro-batch.
pub(crate) fn plan(needs: &[DatumNeed<'_>], cap: usize, share: bool) -> Vec<MicroBatch> {
    let trained = |f: &PrefixFamily| f.members.iter().any(|&m| needs[m].trained);
    let (trained, read): (Vec<_>, Vec<_>) = families(needs, cap, share).into_iter().partition(trained);
    let mut batches: Vec<Vec<PrefixFamily>> = Vec::new();
    for list in [trained, read] {
        let mut size = usize::MAX;
        for family in list {
            let rows = family_rows(needs, &family);
            match batches.last_mut() {
                Some(batch) if size.saturating_add(rows) <= cap => {
                    batch.push(family);
                    size += rows;
                }
                _ => {
                    batches.push(vec![family]);
                    size = rows;
                }
            }
        }
    }
    batches.iter().map(|families| arrange(needs, families)).collect()
}

fn family_rows(needs: &[DatumNeed<'_>], family: &PrefixFamily) -> usize {
    family.prefix + family.members.iter().map(|&m| needs[m].input.len() - family.prefix).sum::<usize>()
}

/// Sorts data by their tokens and cuts the sorted list into families so that the most rows are saved (dynamic
/// programming over the cuts: a family of k members with a prefix of p tokens saves (k - 1) p).
fn families(needs: &[DatumNeed<'_>], cap: usize, share: bool) -> Vec<PrefixFamily> {
    let mut order: Vec<usize> = (0..needs.len()).filter(|&i| !needs[i].input.is_empty()).collect();
    order.sort_by_key(|&i| (needs[i].input, i));
    let input = |at: usize| needs[order[at]].input;
    // best[i]: rows saved among the first i, and where their last family begins.
    let mut best: Vec<(usize, usize, usize)> = vec![(0, 0, 0)];
    for end in 1..=order.len() {
        let mut choice = (best[end - 1].0, end - 1, 0);
        let mut prefix = input(end - 1).len();
        let mut total = input(end - 1).len();
        for begin in (0..end - 1).rev() {
            let common = input(begin).iter().zip(input(begin + 1)).take_while(|(a, b)| a == b).count();
            prefix = prefix.min(common);
            total += input(begin).len();
            let saved = (end - begin - 1) * prefix;
            if !share || prefix < SHORTEST_PREFIX || total - saved > cap {
                break;
            }
            if best[begin].0 + saved > choice.0 {
                choice = (best[begin].0 + saved, begin, prefix);
            }
        }
        best.push(choice);
    }
    let mut families = Vec::new();
    let mut end = order.len();
    while end > 0 {
        let (_, begin, prefix) = best[end];
        families.push(PrefixFamily { prefix, members: order[begin..end].to_vec() });
        end = begin;
    }
    families.reverse();
    families
}

fn arrange(needs: &[DatumNeed<'_>], families: &[PrefixFamily]) -> MicroBatch {
    let mut rows = MicroBatch {
        nodes: Vec::new(),
        trained_nodes: 0,
        trained_rows: 0,
        tokens: Vec::new(),
        members: Vec::new(),
    };
    let mut prefixes = Vec::new();
    let member = |rows: &mut MicroBatch, family: &PrefixFamily, prefix: &Range<usize>, m: usize| {
        let own = rows.push(&needs[m].input[family.prefix..], family.prefix, prefix.clone());
        rows.members.push((m, prefix.clone(), own));
    };
    for family in families {
        let prefix = rows.push(&needs[family.members[0]].input[..family.prefix], 0, 0..0);
        for &m in family.members.iter().filter(|&&m| needs[m].trained) {
            member(&mut rows, family, &prefix, m);
        }
        prefixes.push(prefix);
    }
    if families.iter().any(|f| f.members.iter().any(|&m| needs[m].trained)) {
        (rows.trained_nodes, rows.trained_rows) = (rows.nodes.len(), rows.tokens.len());
    }
    for (family, prefix) in families.iter().zip(&prefixes) {
        for &m in family.members.iter().filter(|&&m| !needs[m].trained) {
            member(&mut rows, family, prefix, m);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every datum must be readable back from its rows.
    fn check(inputs: &[(Vec<Token>, bool)], cap: usize, expected: &[usize]) {
        let needs: Vec<_> = inputs.iter().map(|(i, t)| DatumNeed { input: i, trained: *t }).collect();
        let batches = plan(&needs, cap, true);
        let mut seen = Vec::new();
        for rows in &batches {
            let positions: Vec<_> = rows.positions().collect();
            for (m, prefix, own) in &rows.members {
                let all: Vec<_> = prefix.clone().chain(own.clone()).collect();
                assert_eq!(all.iter().map(|&r| rows.tokens[r]).collect::<Vec<_>>(), inputs[*m].0);
                assert_eq!(
                    all.iter().map(|&r| positions[r]).collect::<Vec<_>>(),
                    (0..all.len()).collect::<Vec<_>>()
                );
                assert!(
                    !inputs[*m].1 || all.iter().all(|&r| r < rows.trained_rows),
                    "datum {m} is not trained"
                );
                seen.push(*m);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..inputs.len()).filter(|&i| !inputs[i].0.is_empty()).collect::<Vec<_>>());
        assert_eq!(batches.iter().map(|b| b.tokens.len()).collect::<Vec<_>>(), expected);
    }

    fn sequence(header: u32, prompt: u32, own: u32, own_len: usize) -> Vec<Token> {
        [vec![header; 10], vec![prompt; 20], vec![own; own_len]].concat()
    }

    #[test]
    fn interleaved_groups_with_a_common_header_share_their_own_prompt() {
        let data: Vec<_> = (0..8).map(|i| (sequence(1, 2 + i % 2, 10 + i, 5), true)).collect();
        check(&data, 1000, &[2 * (30 + 4 * 5)]);
    }

    #[test]
    fn short_beginnings_are_not_shared_and_duplicates_cost_nothing() {
        check(&[(vec![1, 2, 3], true), (vec![1, 2, 4], true)], 1000, &[6]);
        check(&[(sequence(1, 2, 3, 4), true), (sequence(1, 2, 3, 4), true)], 1000, &[34]);
    }

    #[test]
    fn a_cap_cuts_families_and_lets_a_long_datum_through() {
        let data: Vec<_> = (0..4).map(|i| (sequence(1, 2, 10 + i, 5), true)).collect();
        check(&data, 40, &[40, 40]);
        check(&data[..1], 7, &[35]);
    }

    #[test]
    fn untrained_data_follow_trained_ones_or_are_separate() {
        let data = [
            (sequence(1, 2, 3, 5), false),
            (sequence(1, 2, 4, 5), true),
            (sequence(7, 7, 7, 5), false),
            (vec![], false),
        ];
        check(&data, 1000, &[40, 35]);
    }
}
