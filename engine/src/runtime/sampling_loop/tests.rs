//! What open requests hold, in bytes.

use super::*;
use crate::kv_cache::KvCache;
use crate::runtime::budget::PAGE;
use crate::sample::StopRule;
use minds_core::architecture::Architecture;
use minds_core::ids::Token;
use minds_core::sampling::{SampleRequest, SampleResponse, SamplingParams, Stop};
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
    };
    (sampler, page)
}

impl SamplingLoop {
    fn ask(&mut self, prompt: Vec<Token>, max_new: usize) -> Answer {
        let (reply, answer) = oneshot::channel();
        let params = SamplingParams { stop: Stop::Tokens(vec![]), ..SamplingParams::plain(max_new) };
        let need = self.budget.need(prompt.len(), max_new);
        let request = SampleRequest::new(prompt.into(), 1, params);
        let rule = StopRule::new(&request.params.stop, &Arc::from([]), None).unwrap();
        self.waiting.push_back(QueuedSample { request, snapshot: None, rule, seed: 1, max_new, need, reply });
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
