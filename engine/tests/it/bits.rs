//! The same tokens give the same bits, however they are batched, cut, shared or trained.

use crate::fixture::{adapter, architectures, datum, random, tokens};
use minds_core::architecture::Architecture;
use minds_core::ids::Token;
use minds_core::loss::Loss;
use minds_engine::adapter::AdapterWeights;
use minds_engine::kv_cache::KvCache;
use minds_engine::model::{Model, SequenceExtension, extend, log_sum_exp, logits};
use minds_engine::train::{LogprobRows, PassOptions, TrainingWorkspace, forward};
use std::sync::Arc;

/// A sequence of tokens, its adapter, and its logprobs from prefilling it alone in one call.
struct Case<'a> {
    tokens: Vec<Token>,
    adapter: Option<&'a AdapterWeights<f32>>,
}

fn read(model: &Model<f32>, tokens: &[Token], first: usize, rows: &[f32]) -> Vec<u32> {
    let vocab = model.architecture().vocab;
    let targets = tokens[first + 1..].iter();
    rows.chunks(vocab).zip(targets).map(|(row, t)| (row[*t as usize] - log_sum_exp(row)).to_bits()).collect()
}

/// Runs pieces of `case` one after the other onto `kv`; logprob bits from position `from` on.
fn run(model: &Model<f32>, case: &Case<'_>, kv: &mut KvCache<f32>, pieces: &[usize]) -> Vec<u32> {
    let mut bits = Vec::new();
    for &piece in pieces {
        let at = kv.len();
        let tokens = &case.tokens[at..at + piece];
        let hidden = extend(model, &mut [SequenceExtension { adapter: case.adapter, tokens, kv }]).unwrap();
        let rows: Vec<usize> = hidden.rows(0).collect();
        bits.extend(read(model, &case.tokens, at, &logits(model, &hidden, &rows)));
    }
    bits
}

fn check(arch: &Architecture, prompt: usize, len: usize) {
    let model = Model::<f32>::random(arch.clone(), 1).unwrap();
    let adapters = [adapter::<f32>(arch, 3, 2).weights(), adapter::<f32>(arch, 5, 3).weights()];
    let mut random = random(4);
    let shared = tokens(&mut random, prompt, arch.vocab);
    let cases: Vec<_> = (0..16)
        .map(|i| {
            // Cases 0 and 1 begin alike and have the same adapter; lengths differ.
            let prompt = if i < 2 { shared.clone() } else { tokens(&mut random, prompt - i, arch.vocab) };
            let own = tokens(&mut random, len - prompt.len() - i % 3, arch.vocab);
            let adapter = if i < 2 {
                Some(&adapters[0])
            } else {
                [None, Some(&adapters[0]), Some(&adapters[1])][i % 3]
            };
            Case { tokens: [prompt, own].concat(), adapter }
        })
        .collect();

    // Alone and at once.
    let whole: Vec<_> = cases
        .iter()
        .map(|c| run(&model, c, &mut KvCache::root(model.architecture()), &[c.tokens.len()]))
        .collect();
    assert!(whole.iter().all(|bits| bits.iter().all(|b| f32::from_bits(*b) < 0.0)));
    assert_ne!(whole[0], whole[1]);

    // Prompt, then token by token; and cut off the grid.
    let case = &cases[0];
    let rest = case.tokens.len() - prompt;
    let decoded = run(
        &model,
        case,
        &mut KvCache::root(model.architecture()),
        &[&[prompt][..], &vec![1; rest]].concat(),
    );
    assert_eq!(decoded, whole[0], "token by token");
    let cut = run(&model, case, &mut KvCache::root(model.architecture()), &[7, prompt - 8, 1, rest]);
    assert_eq!(cut, whole[0], "cut in pieces");

    // All sixteen in one batch, with two adapters and none.
    let mut kvs: Vec<_> = cases.iter().map(|_| KvCache::root(model.architecture())).collect();
    let mut found = vec![Vec::new(); cases.len()];
    for step in 0.. {
        let pieces: Vec<_> =
            kvs.iter().map(|kv| (kv.len(), if step == 0 { prompt - 15 } else { 1 })).collect();
        let live: Vec<usize> = (0..cases.len()).filter(|&i| pieces[i].0 < cases[i].tokens.len()).collect();
        if live.is_empty() {
            break;
        }
        let mut work: Vec<_> = kvs
            .iter_mut()
            .zip(&cases)
            .zip(&pieces)
            .filter(|((_, c), (at, _))| *at < c.tokens.len())
            .map(|((kv, c), (at, n))| SequenceExtension {
                adapter: c.adapter,
                tokens: &c.tokens[*at..at + n],
                kv,
            })
            .collect();
        let hidden = extend(&model, &mut work).unwrap();
        for (entry, &i) in live.iter().enumerate() {
            let rows: Vec<usize> = hidden.rows(entry).collect();
            found[i].extend(read(&model, &cases[i].tokens, pieces[i].0, &logits(&model, &hidden, &rows)));
        }
    }
    assert_eq!(found, whole, "in a batch");

    // Children of a shared prompt, and copies of the beginning of another sequence.
    let mut root = KvCache::root(model.architecture());
    let begun = run(&model, &cases[0], &mut root, &[prompt]);
    let root = Arc::new(root);
    for i in 0..2 {
        let mut child = KvCache::child(root.clone());
        let rest = run(&model, &cases[i], &mut child, &[2, cases[i].tokens.len() - prompt - 2]);
        assert_eq!(
            [&begun[..prompt - 1], &whole[i][prompt - 1..prompt], &rest].concat(),
            whole[i],
            "child {i}"
        );
        let mut fork = child.fork(prompt - 3);
        let rest = run(&model, &cases[1 - i], &mut fork, &[cases[1 - i].tokens.len() - prompt + 3]);
        assert_eq!(rest, whole[1 - i][prompt - 3..], "fork {i}");
    }

    // The training forward pass, with shared prompts and without, for all rows and for trained ones, in used memory.
    let mut workspace = TrainingWorkspace::default();
    for (share_prefixes, rows) in
        [(true, LogprobRows::All), (false, LogprobRows::All), (true, LogprobRows::Trained)]
    {
        for adapter in [None, Some(&adapters[0]), Some(&adapters[1])] {
            let same = |c: &Case<'_>| c.adapter.map(std::ptr::from_ref) == adapter.map(std::ptr::from_ref);
            let (members, bits): (Vec<_>, Vec<_>) = cases.iter().zip(&whole).filter(|(c, _)| same(c)).unzip();
            let data: Vec<_> = members
                .iter()
                .map(|c| datum(&c.tokens, c.tokens.len() - 20, Loss::CrossEntropy, |_| 1.0, |_| 0.0))
                .collect();
            let options = PassOptions { rows, share_prefixes };
            let out = forward(&model, adapter, &data, Loss::CrossEntropy, options, &mut workspace).unwrap();
            for (found, whole) in out.logprobs.iter().zip(bits) {
                let found: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
                let first = if rows == LogprobRows::All { 0 } else { 19 };
                assert_eq!(found[first..], whole[first..], "trained, {options:?}");
                assert!(found[..first].iter().all(|b| *b == 0));
            }
        }
    }
}

#[test]
fn a_sequence_has_one_result_on_every_path() {
    for (_, arch) in architectures() {
        check(&arch, 37, 70);
    }
    check(&Architecture { context: 256, ..Architecture::tiny() }, 64, 100);
}

#[test]
fn requests_that_cannot_be_served_change_nothing() {
    let (_, arch) = &architectures()[0];
    let model = Model::<f32>::random(arch.clone(), 1).unwrap();
    let mut kvs = [KvCache::root(model.architecture()), KvCache::root(model.architecture())];
    let [a, b] = &mut kvs;
    let long = vec![1; arch.context + 1];
    for (tokens, message) in [
        (&[37][..], "token 37 is outside of the vocabulary of 37"),
        (&long[..], "a sequence of 129 tokens exceeds the context of 128"),
    ] {
        let mut work = [
            SequenceExtension { adapter: None, tokens: &[1], kv: a },
            SequenceExtension { adapter: None, tokens, kv: b },
        ];
        assert_eq!(extend(&model, &mut work).unwrap_err().to_string(), message);
        assert!(a.is_empty() && b.is_empty());
    }
    let other = adapter::<f32>(&Architecture::tiny(), 2, 1).weights();
    assert!(extend(&model, &mut [SequenceExtension { adapter: Some(&other), tokens: &[1], kv: a }]).is_err());
}
