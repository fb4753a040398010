//! What open requests hold, in bytes, and what new weights change for those that follow them.

use super::*;
use crate::adapter::Adapter;
use crate::kv_cache::KvCache;
use crate::runtime::budget::PAGE;
use crate::runtime::{AdapterSnapshot, InFlightTarget, SamplingWeights};
use crate::sample::{NormalizedLogits, StopRule};
use minds_core::architecture::Architecture;
use minds_core::ids::{PolicyVersion, Token};
use minds_core::lora::LoraSpec;
use minds_core::sampling::{Completion, SampleRequest, SampleResponse, SamplingParams, Stop, VersionSpan};
use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use tokio::sync::oneshot;

type Answer = oneshot::Receiver<Result<SampleResponse, BackendError>>;

/// A sampler that is driven by hand, with a budget in pages for open requests and one for kept prompts.
fn sampler(open: usize, kept: usize) -> (SamplingLoop, usize) {
    let model = Arc::new(Model::<f32>::random(Architecture::tiny(), 1).unwrap());
    let page = KvBudget::new(model.architecture(), 0, 0).need(1, 0).prompt_bytes;
    let sampler = SamplingLoop {
        budget: KvBudget::new(model.architecture(), open * page, 64),
        cache: PrefixCache::new(kept * page),
        model,
        requests: channel().1,
        counters: Arc::default(),
        stopping: Arc::default(),
        waiting: VecDeque::new(),
        running: Vec::new(),
        swap_kv: SwapKv::Keep,
    };
    (sampler, page)
}

impl SamplingLoop {
    fn ask(&mut self, prompt: Vec<Token>, max_new: usize) -> Answer {
        let params = SamplingParams { stop: Stop::Tokens(vec![]), ..SamplingParams::plain(max_new) };
        self.ask_of(SamplingWeights::Base, SampleRequest::new(prompt.into(), 1, params))
    }

    fn ask_of(&mut self, weights: SamplingWeights, request: SampleRequest) -> Answer {
        let (reply, answer) = oneshot::channel();
        let max_new = request.params.max_tokens;
        let need = self.budget.need(request.prompt.len(), max_new);
        let rule = StopRule::new(&request.params.stop, &Arc::from([]), None).unwrap();
        self.waiting.push_back(QueuedSample { request, weights, rule, seed: 1, max_new, need, reply });
        self.counters.waiting.fetch_add(1, Ordering::Relaxed);
        answer
    }

    fn turn(&mut self) {
        self.admit();
        self.step();
        self.retire_ended();
    }

    /// Bytes of all keys and values that an open request keeps alive, each counted once.
    fn held(&self) -> usize {
        let mut segments = BTreeMap::new();
        for job in &self.running {
            let prompt = match &job.prompt {
                PromptState::Prefilling { kv } => kv,
                PromptState::Prefilled { kv, .. } => kv,
            };
            for first in job.rows.iter().map(|row| &row.kv).chain([prompt]) {
                let mut next: Option<&KvCache<f32>> = Some(first);
                while let Some(kv) = next {
                    segments.insert(std::ptr::from_ref(kv).addr(), kv.bytes());
                    next = kv.parent().map(|parent| &**parent);
                }
            }
        }
        segments.values().sum()
    }
}

/// Long prompts come and go; each leaves a sample running that shares one page with it.
#[test]
fn what_is_held_is_counted_also_where_prompts_begin_alike() {
    let (long, shorts) = (20, 6);
    // Two pages of prompt and seven of the sample.
    let (mut sampler, page) = sampler(long + 9 * shorts, long);
    let mut running = Vec::new();
    for salt in 0..shorts as Token {
        let prompt: Vec<Token> = (0..(long * PAGE) as Token).map(|at| (at * 37 + salt * 11) % 256).collect();
        let mut whole = sampler.ask(prompt.clone(), 1);
        while whole.try_recv().is_err() {
            sampler.turn();
            assert!(sampler.held() <= sampler.budget.used_bytes());
        }
        running.push(sampler.ask([&prompt[..PAGE], &[1; 8]].concat(), 200));
        while sampler.running.iter().any(|job| job.rows.is_empty()) || !sampler.waiting.is_empty() {
            sampler.turn();
            assert!(sampler.held() <= sampler.budget.used_bytes());
        }
    }
    assert_eq!(sampler.running.len(), shorts, "all of them are running");
    assert_eq!(sampler.counters.snapshot().cached_tokens, (shorts * PAGE) as u64);
    assert_eq!(sampler.budget.used_bytes(), shorts * 9 * page);
    drop(running);
    sampler.drop_abandoned();
    assert_eq!((sampler.held(), sampler.budget.used_bytes()), (0, 0));
}

/// Tokens of the answers to which weights are swapped.
const LONG: usize = 512;
const PROMPT: usize = 40;

/// The weights of a version: an adapter that has learnt something.
fn snapshot(model: &Model<f32>, version: u64) -> Arc<AdapterSnapshot> {
    let spec = LoraSpec { alpha: 8.0, ..LoraSpec::all_linear(4, version) };
    let mut adapter = Adapter::<f32>::new(model.architecture(), &spec).unwrap();
    for (at, value) in adapter.values_mut().iter_mut().enumerate() {
        *value += 0.3 * ((at as f32 + 1.0) * (version as f32 + 1.7)).sin();
    }
    Arc::new(AdapterSnapshot::new(adapter.weights()))
}

fn long_request(samples: usize) -> SampleRequest {
    let prompt: Vec<Token> = (0..PROMPT as Token).map(|at| (at * 37 + 11) % 256).collect();
    let params = SamplingParams { stop: Stop::Tokens(vec![]), ..SamplingParams::plain(LONG) };
    SampleRequest::new(prompt.into(), samples, params)
}

/// Samples two long answers, and publishes the next version after each of these numbers of turns.
fn swapped(swap_kv: SwapKv, swaps: &[usize]) -> (SamplingLoop, Vec<Arc<AdapterSnapshot>>, SampleResponse) {
    let (mut sampler, _) = sampler(200, 20);
    sampler.swap_kv = swap_kv;
    let weights: Vec<_> = (0..=swaps.len() as u64).map(|version| snapshot(&sampler.model, version)).collect();
    let target = Arc::new(InFlightTarget::new(weights[0].clone(), PolicyVersion(0)));
    let mut answer = sampler.ask_of(SamplingWeights::InFlight(target.clone()), long_request(2));
    for turn in 0.. {
        if let Some(at) = swaps.iter().position(|swap| *swap == turn) {
            target.publish(weights[at + 1].clone(), PolicyVersion(at as u64 + 1));
        }
        sampler.turn();
        assert!(sampler.held() <= sampler.budget.used_bytes(), "turn {turn}");
        if let Ok(answered) = answer.try_recv() {
            assert_eq!(sampler.budget.used_bytes(), 0);
            return (sampler, weights, answered.unwrap());
        }
    }
    unreachable!("the answer arrives")
}

/// The version of each token.
fn versions(sampled: &Completion) -> Vec<usize> {
    let each = |span: &VersionSpan| vec![span.version.0 as usize; span.tokens];
    sampled.versions.iter().flat_map(each).collect()
}

/// Logprob bits of the tokens of a sequence after its first, which runs through the model in these pieces, each under its
/// weights.
fn forward(model: &Model<f32>, tokens: &[Token], pieces: &[(usize, &AdapterSnapshot)]) -> Vec<u32> {
    let mut kv = KvCache::root(model.architecture());
    let mut bits = Vec::new();
    for (len, weights) in pieces {
        let at = kv.len();
        let adapter = Some(weights.weights());
        let work = SequenceExtension { adapter, tokens: &tokens[at..at + len], kv: &mut kv };
        let hidden = extend(model, &mut [work]).unwrap();
        let rows: Vec<usize> = hidden.rows(0).collect();
        let block = logits(model, &hidden, &rows);
        let scored = block.chunks(model.architecture().vocab).zip(&tokens[at + 1..]);
        bits.extend(scored.map(|(row, token)| NormalizedLogits::new(row).unwrap().logprob(*token).to_bits()));
    }
    bits
}

fn sequence(sampled: &Completion) -> Vec<Token> {
    [&long_request(1).prompt[..], &sampled.tokens].concat()
}

/// The published versions, at turns that lie apart and at two that follow each other.
const SWAPS: [usize; 4] = [100, 237, 238, 400];

#[test]
fn with_recomputed_keys_a_logprob_is_that_of_a_fresh_pass_under_the_version_that_it_names() {
    let (sampler, weights, response) = swapped(SwapKv::Recompute, &SWAPS);
    for sampled in &response.sequences {
        let named = versions(sampled);
        assert_eq!((named.len(), sampled.tokens.len()), (LONG, LONG));
        assert_eq!(named.first(), Some(&0));
        // A row draws a token between two swaps, so each version has sampled something.
        assert!(named.windows(2).all(|pair| pair[1] == pair[0] || pair[1] == pair[0] + 1), "{named:?}");
        assert_eq!(named.last(), Some(&SWAPS.len()));
        let tokens = sequence(sampled);
        let passes: Vec<Vec<u32>> = weights
            .iter()
            .map(|weights| forward(&sampler.model, &tokens, &[(tokens.len(), weights)]))
            .collect();
        for (at, (logprob, version)) in sampled.logprobs.iter().zip(named).enumerate() {
            assert_eq!(logprob.to_bits(), passes[version][PROMPT - 1 + at], "token {at}, version {version}");
        }
    }
    // Every swap reads the prompt and what was sampled once more.
    let recomputed = sampler.counters.snapshot().recomputed_tokens as usize;
    assert!(recomputed > SWAPS.len() * PROMPT + 2 * 100, "{recomputed}");
}

#[test]
fn with_kept_keys_a_token_attends_to_those_of_the_versions_before_it() {
    let (sampler, weights, response) = swapped(SwapKv::Keep, &SWAPS);
    let mut mixed = false;
    for sampled in &response.sequences {
        let named = versions(sampled);
        let tokens = sequence(sampled);
        // A token is read in the step that draws the next one.
        let mut pieces: Vec<(usize, &AdapterSnapshot)> = vec![(PROMPT, &weights[0])];
        pieces.extend(named[1..].iter().map(|version| (1, &*weights[*version])));
        let pass = forward(&sampler.model, &tokens, &pieces);
        let drawn: Vec<u32> = sampled.logprobs.iter().map(|logprob| logprob.to_bits()).collect();
        assert_eq!(drawn, pass[PROMPT - 1..]);
        let last = forward(&sampler.model, &tokens, &[(tokens.len(), &weights[SWAPS.len()])]);
        mixed |= drawn[LONG - 1] != last[PROMPT + LONG - 2];
        assert_eq!(named.iter().filter(|version| **version == 0).count(), 100);
    }
    assert!(mixed, "a fresh pass would see other keys");
    assert_eq!(sampler.counters.snapshot().recomputed_tokens, 0);
}

#[test]
fn without_a_swap_a_request_in_flight_is_that_of_a_snapshot() {
    for swap_kv in [SwapKv::Keep, SwapKv::Recompute] {
        let (mut sampler, weights, response) = swapped(swap_kv, &[]);
        let mut answer = sampler.ask_of(SamplingWeights::Snapshot(weights[0].clone()), long_request(2));
        let fixed = loop {
            sampler.turn();
            if let Ok(answered) = answer.try_recv() {
                break answered.unwrap();
            }
        };
        for (flight, fixed) in response.sequences.iter().zip(&fixed.sequences) {
            assert_eq!((&flight.tokens, &flight.logprobs), (&fixed.tokens, &fixed.logprobs));
            assert_eq!(flight.versions, [VersionSpan { version: PolicyVersion(0), tokens: LONG }]);
            assert!(fixed.versions.is_empty());
        }
    }
}

#[test]
fn a_prompt_is_scored_under_one_version_whatever_is_published_meanwhile() {
    for swap_kv in [SwapKv::Keep, SwapKv::Recompute] {
        let (mut sampler, _) = sampler(200, 20);
        sampler.swap_kv = swap_kv;
        let weights = [0, 1].map(|version| snapshot(&sampler.model, version));
        let target = Arc::new(InFlightTarget::new(weights[0].clone(), PolicyVersion(0)));
        let tokens: Arc<[Token]> = (0..600).map(|at| (at * 31 + 7) % 256).collect();
        let request = SampleRequest { prompt_logprobs: true, ..long_request(1) };
        let request = SampleRequest { prompt: tokens.clone(), ..request };
        let mut answer = sampler.ask_of(SamplingWeights::InFlight(target.clone()), request);
        sampler.turn();
        target.publish(weights[1].clone(), PolicyVersion(1));
        let response = loop {
            sampler.turn();
            if let Ok(answered) = answer.try_recv() {
                break answered.unwrap();
            }
        };
        let scores = response.prompt_logprobs.unwrap();
        let scored: Vec<u32> = scores[1..].iter().map(|score| score.unwrap().to_bits()).collect();
        let pass = forward(&sampler.model, &tokens, &[(tokens.len(), &weights[0])]);
        assert_eq!(scored, pass[..tokens.len() - 1]);
        assert_eq!(response.sequences[0].versions.last().unwrap().version, PolicyVersion(1));
    }
}
