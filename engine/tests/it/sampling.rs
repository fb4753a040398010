//! The sampling loop: what a sample depends on, what it costs, and what becomes of those that cannot be served.

use crate::service::{Bytes, bits, engine, model, options, prompt, request, rollout, service, trained, wait};
use minds_core::chat::Tokenizer;
use minds_core::ids::Token;
use minds_core::loss::Loss;
use minds_core::sampling::{SampleRequest, SamplingParams, Stop, StopReason, TargetTokens};
use minds_core::service::{BackendError, TrainingBackend};
use minds_engine::runtime::{Engine, EngineOptions, SamplingWeights};
use minds_engine::train::LogprobRows;
use std::sync::Arc;

#[test]
fn a_sample_alone_is_the_sample_among_fifteen_others() {
    let options = EngineOptions { prefix_bytes: 0, ..options() };
    let alone = engine(&options);
    let crowd = engine(&options);
    let requests: Vec<SampleRequest> = (0..16)
        .map(|i| request(prompt(3 + 7 * i as usize, i), 1 + i as usize % 2, 24, u64::from(i)))
        .collect();
    let queued: Vec<_> =
        requests.iter().map(|r| crowd.sample(SamplingWeights::Base, r.clone()).unwrap()).collect();
    let together: Vec<_> = queued.into_iter().map(|q| bits(&wait(q).unwrap())).collect();
    for (request, together) in requests.into_iter().zip(together) {
        assert_eq!(bits(&wait(alone.sample(SamplingWeights::Base, request).unwrap()).unwrap()), together);
    }
}

#[test]
fn sampled_scored_and_trained_logprobs_are_equal_to_the_bit() {
    let service = service(&options());
    let training = trained(&service, LogprobRows::All);
    let sampler = wait(training.export_sampler(None)).unwrap().sampler;
    let prompt = prompt(45, 1);
    let response = wait(sampler.sample(request(prompt.clone(), 4, 40, 9))).unwrap();
    let data: Vec<_> =
        response.sequences.iter().map(|s| rollout(&prompt, &s.tokens, &s.logprobs, 1.0)).collect();
    let forward = wait(training.forward_backward(data.clone(), Loss::ImportanceSampling)).unwrap();
    for ((sampled, trained), datum) in response.sequences.iter().zip(&forward.logprobs).zip(&data) {
        let all: Arc<[Token]> = [&datum.input()[..1], datum.targets()].concat().into();
        let scored = wait(sampler.logprobs(all)).unwrap();
        for (i, lp) in sampled.logprobs.iter().enumerate() {
            let scored = scored[prompt.len() + i].unwrap();
            let trained = trained[prompt.len() - 1 + i];
            assert_eq!([scored.to_bits(), trained.to_bits()], [lp.to_bits(); 2], "{lp} {scored} {trained}");
        }
    }
    // With a ratio of exactly 1 the loss is minus the number of tokens.
    assert_eq!(forward.metrics["loss:sum"], -160.0);
}

#[test]
fn the_samples_of_a_request_share_one_prefill() {
    let engine = engine(&options());
    let response =
        wait(engine.sample(SamplingWeights::Base, request(prompt(100, 1), 8, 5, 1)).unwrap()).unwrap();
    assert_eq!((response.sequences.len(), response.cached_prompt_tokens), (8, 0));
    let stats = engine.stats();
    assert_eq!((stats.prefilled_tokens, stats.cached_tokens, stats.decoded_tokens), (100, 0, 40));
}

#[test]
fn prompts_that_begin_alike_are_read_once_and_give_the_same_bits() {
    let off = engine(&EngineOptions { prefix_bytes: 0, ..options() });
    let on = engine(&options());
    let few_shot = prompt(80, 1);
    let with = |tail: &[Token]| -> Arc<[Token]> { [&few_shot[..], tail].concat().into() };
    // All queued at once: the later ones wait for the first to read the common part.
    let prompts = [with(&[1, 2, 3]), with(&[4, 5]), with(&[1, 2, 3]), with(&[6])];
    let queued: Vec<_> = prompts
        .iter()
        .map(|p| on.sample(SamplingWeights::Base, request(p.clone(), 2, 9, 4)).unwrap())
        .collect();
    let mut cached = 0;
    for (queued, prompt) in queued.into_iter().zip(&prompts) {
        let warm = wait(queued).unwrap();
        cached += warm.cached_prompt_tokens;
        assert_eq!(
            bits(&warm),
            bits(
                &wait(off.sample(SamplingWeights::Base, request(prompt.clone(), 2, 9, 4)).unwrap()).unwrap()
            )
        );
    }
    assert_eq!((cached, on.stats().prefilled_tokens), (3 * 64, 83 + 18 + 19 + 17));

    // Scores are reused only from prompts that were scored.
    let score = |engine: &Engine| {
        let response =
            wait(engine.sample(SamplingWeights::Base, SampleRequest::score(with(&[7, 8]))).unwrap()).unwrap();
        let bits: Vec<_> = response.prompt_logprobs.unwrap().iter().map(|lp| lp.map(f32::to_bits)).collect();
        (response.cached_prompt_tokens, bits)
    };
    let (first, second, cold) = (score(&on), score(&on), score(&off));
    assert_eq!((first.0, second.0, cold.0), (0, 64, 0));
    assert_eq!((&first.1, &second.1), (&cold.1, &cold.1));
}

#[test]
fn an_adapter_never_sees_the_prefixes_of_another() {
    let service = service(&options());
    let training = trained(&service, LogprobRows::All);
    let sampler = wait(training.export_sampler(None)).unwrap().sampler;
    let base = wait(minds_core::service::Service::base_sampler(&service)).unwrap();
    let ask = || request(prompt(70, 1), 1, 8, 1);
    let [a, b] = [&base, &sampler].map(|s| wait(s.sample(ask())).unwrap());
    assert_eq!((a.cached_prompt_tokens, b.cached_prompt_tokens), (0, 0));
    assert_ne!(bits(&a), bits(&b));
    assert_eq!(wait(sampler.sample(ask())).unwrap().cached_prompt_tokens, 64);
}

#[test]
fn a_stop_string_ends_the_sample_with_the_token_that_completes_it() {
    let engine = engine(&options());
    let free = wait(engine.sample(SamplingWeights::Base, request(prompt(9, 1), 1, 64, 3)).unwrap()).unwrap();
    let tokens = &free.sequences[0].tokens;
    // Two printable bytes in a row.
    let printable = |t: &Token| (32..127).contains(t);
    let at = tokens.windows(2).position(|pair| pair.iter().all(printable)).unwrap();
    let stop = Bytes.decode(&tokens[at..at + 2]);
    let mut asked = request(prompt(9, 1), 1, 64, 3);
    asked.params.stop = Stop::Strings(vec!["never".into(), stop.clone()]);
    let response = wait(engine.sample(SamplingWeights::Base, asked.clone()).unwrap()).unwrap();
    let sampled = &response.sequences[0];
    assert_eq!((sampled.stop, &sampled.tokens[..]), (StopReason::Stop, &tokens[..at + 2]), "{stop}");

    let mute = Engine::start(model(), None, &options()).unwrap();
    assert!(matches!(mute.sample(SamplingWeights::Base, asked), Err(BackendError::Unsupported(_))));
}

#[test]
fn the_context_ends_a_sample_and_a_full_prompt_can_only_be_scored() {
    let engine = engine(&options());
    let context = engine.model().architecture().context;
    let response =
        wait(engine.sample(SamplingWeights::Base, request(prompt(context - 3, 1), 1, 100, 1)).unwrap())
            .unwrap();
    assert_eq!((response.sequences[0].tokens.len(), response.sequences[0].stop), (3, StopReason::Length));
    assert!(matches!(
        engine.sample(SamplingWeights::Base, request(prompt(context, 1), 1, 1, 1)),
        Err(BackendError::Rejected(_))
    ));
    let scored =
        wait(engine.sample(SamplingWeights::Base, SampleRequest::score(prompt(context, 1))).unwrap())
            .unwrap();
    assert_eq!(scored.prompt_logprobs.unwrap().len(), context);
    assert_eq!(scored.sequences.len(), 1);
}

#[test]
fn greedy_and_topk_lists_agree_with_the_logprobs() {
    let engine = engine(&options());
    let params = SamplingParams { temperature: 0.0, ..SamplingParams::plain(6) };
    let ask = SampleRequest {
        prompt_logprobs: true,
        topk_prompt_logprobs: 259,
        topk_sample_logprobs: 3,
        ..SampleRequest::new(prompt(40, 1), 1, params)
    };
    let response = wait(engine.sample(SamplingWeights::Base, ask).unwrap()).unwrap();
    let sampled = &response.sequences[0];
    for ((token, lp), list) in
        sampled.tokens.iter().zip(&sampled.logprobs).zip(sampled.topk.as_ref().unwrap())
    {
        assert_eq!((list.len(), list[0]), (3, (*token, *lp)));
    }
    let (scores, lists) = (response.prompt_logprobs.unwrap(), response.topk_prompt_logprobs.unwrap());
    assert_eq!((scores.len(), lists.len(), scores[0], lists[0].is_none()), (40, 40, None, true));
    for (position, token) in prompt(40, 1).iter().enumerate().skip(1) {
        let list = lists[position].as_ref().unwrap();
        let whole: f64 = list.iter().map(|(_, lp)| f64::from(*lp).exp()).sum();
        assert!((whole - 1.0).abs() < 1e-4, "the probabilities sum to {whole}");
        assert_eq!(list.iter().find(|(t, _)| t == token).map(|(_, lp)| *lp), scores[position]);
    }
}

#[test]
fn the_last_tokens_of_a_prompt_are_scored_from_the_prefix_cache() {
    let engine = engine(&options());
    let tokens = prompt(100, 1);
    let all =
        wait(engine.sample(SamplingWeights::Base, SampleRequest::score(tokens.clone())).unwrap()).unwrap();
    let all = all.prompt_logprobs.unwrap();
    for (last, cached) in [(3, 96), (4, 96), (99, 96)] {
        let response = engine
            .sample(SamplingWeights::Base, SampleRequest::score_from(tokens.clone(), 100 - last))
            .unwrap();
        let response = wait(response).unwrap();
        assert_eq!(response.cached_prompt_tokens, cached, "{last}");
        let scores = response.prompt_logprobs.unwrap();
        assert!(scores[..100 - last].iter().all(Option::is_none), "{last}");
        assert_eq!(scores[100 - last..], all[100 - last..], "{last}");
    }
    // Another sequence with the same beginning, sampled: its logprobs are not known, only its keys and values.
    let other = prompt(100, 2);
    wait(engine.sample(SamplingWeights::Base, request(other.clone(), 1, 1, 1)).unwrap()).unwrap();
    for (last, cached) in [(3, 96), (4, 64), (99, 0)] {
        let response = engine
            .sample(SamplingWeights::Base, SampleRequest::score_from(other.clone(), 100 - last))
            .unwrap();
        assert_eq!(wait(response).unwrap().cached_prompt_tokens, cached, "{last}");
    }
    let whole = SampleRequest::score_from(other, 1);
    assert_eq!(whole.prompt_logprobs_last_n, None, "the first token has no logprob");
}

#[test]
fn requested_targets_have_the_logprobs_of_the_whole_distribution() {
    let engine = engine(&options());
    let tokens = prompt(40, 1);
    let rows = tokens.len() - 1;
    let targets: Vec<Option<Token>> = (0..rows).flat_map(|row| [Some(row as Token), None]).collect();
    let ask = SampleRequest {
        target_prompt_logprobs: Some(TargetTokens { tokens: targets.into(), k: 2 }),
        topk_prompt_logprobs: 259,
        ..SampleRequest::score(tokens.clone())
    };
    let response = wait(engine.sample(SamplingWeights::Base, ask.clone()).unwrap()).unwrap();
    let found = response.target_prompt_logprobs.unwrap();
    assert_eq!((found.k, found.logprobs.len()), (2, 2 * rows));
    let lists = response.topk_prompt_logprobs.unwrap();
    for (row, pair) in found.logprobs.chunks(2).enumerate() {
        let list = lists[row + 1].as_ref().unwrap();
        let expected = list.iter().find(|(token, _)| *token == row as Token).unwrap().1;
        assert_eq!(pair, [expected, 0.0]);
    }
    let outside = TargetTokens { tokens: vec![Some(9999); rows].into(), k: 1 };
    let ask = SampleRequest { target_prompt_logprobs: Some(outside), ..ask };
    assert!(matches!(engine.sample(SamplingWeights::Base, ask), Err(BackendError::Rejected(_))));
}

/// Bytes of 32 positions of the tiny model.
const PAGE: usize = 32 * 2 * 2 * (16 + 32) * 4;

#[test]
fn what_does_not_fit_waits_and_what_never_fits_is_refused() {
    let roomy = engine(&options());
    // Room for one prompt page and one row page: every sample runs alone.
    let tight = engine(&EngineOptions { kv_bytes: 2 * PAGE, prefix_bytes: 0, ..options() });
    let asks: Vec<_> = (0..4).map(|i| request(prompt(30, i), 3, 20, u64::from(i))).collect();
    // 30 + 19 positions touch two pages, one of them the prompt's: too much.
    let error = tight.sample(SamplingWeights::Base, asks[0].clone()).err().unwrap().to_string();
    assert!(error.contains(&format!("{}", 3 * PAGE)) && error.contains(&format!("{}", 2 * PAGE)), "{error}");

    let asks: Vec<_> = (0..4).map(|i| request(prompt(32, i), 3, 20, u64::from(i))).collect();
    let queued: Vec<_> =
        asks.iter().map(|r| tight.sample(SamplingWeights::Base, r.clone()).unwrap()).collect();
    for (queued, ask) in queued.into_iter().zip(asks) {
        assert_eq!(
            bits(&wait(queued).unwrap()),
            bits(&wait(roomy.sample(SamplingWeights::Base, ask).unwrap()).unwrap())
        );
    }
    // One sample at a time: 12 samples of 19 batches each, the prompts not counted.
    assert!(tight.stats().steps >= 12 * 19, "{:?}", tight.stats());
}

#[test]
fn more_samples_than_rows_take_turns() {
    let wide = engine(&options());
    let narrow = engine(&EngineOptions { max_rows: 3.try_into().unwrap(), ..options() });
    let [a, b] = [&wide, &narrow]
        .map(|e| wait(e.sample(SamplingWeights::Base, request(prompt(5, 1), 10, 7, 2)).unwrap()).unwrap());
    assert_eq!(bits(&a), bits(&b));
}

#[test]
fn a_request_whose_caller_is_gone_is_abandoned() {
    // Room for exactly the first request; the second starts only when that is gone.
    let ask = request(prompt(32, 1), 8, 1900, 1);
    let pages = 1 + 8 * 1899_usize.div_ceil(32);
    let engine = engine(&EngineOptions { kv_bytes: pages * PAGE, prefix_bytes: 0, ..options() });
    drop(engine.sample(SamplingWeights::Base, ask).unwrap());
    wait(engine.sample(SamplingWeights::Base, request(prompt(32, 2), 8, 2, 1)).unwrap()).unwrap();
    let stats = engine.stats();
    assert!(stats.decoded_tokens < 8 * 1900, "{stats:?}");
    assert_eq!(stats.waiting, 0);
}

/// Decodes nothing.
struct Broken;

impl Tokenizer for Broken {
    fn encode(&self, _: &str) -> Vec<Token> {
        vec![]
    }
    fn control(&self, _: &str) -> Option<Token> {
        None
    }
    fn decode(&self, _: &[Token]) -> String {
        panic!("a tokenizer with a bug")
    }
    fn vocab(&self) -> usize {
        259
    }
    fn stop_tokens(&self) -> Vec<Token> {
        vec![]
    }
    fn bos(&self) -> Option<Token> {
        None
    }
}

#[test]
fn a_panic_costs_the_request_that_met_it() {
    let engine = Engine::start(model(), Some(Arc::new(Broken)), &options()).unwrap();
    let good = engine.sample(SamplingWeights::Base, request(prompt(9, 1), 2, 30, 1)).unwrap();
    let mut bad = request(prompt(9, 2), 2, 30, 1);
    bad.params.stop = Stop::Strings(vec!["x".into()]);
    match wait(engine.sample(SamplingWeights::Base, bad).unwrap()) {
        Err(BackendError::Unavailable(text)) => assert!(text.contains("a tokenizer with a bug"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(wait(good).unwrap().sequences.len(), 2);
    assert_eq!(
        wait(engine.sample(SamplingWeights::Base, request(prompt(9, 1), 1, 3, 1)).unwrap())
            .unwrap()
            .sequences
            .len(),
        1
    );
}
