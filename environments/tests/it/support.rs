//! Fakes: a tokenizer over bytes, a reader whose logprobs a test scripts, and episodes of one answer.

use async_trait::async_trait;
use minds_core::chat::{ChatTemplate, ControlToken, Message, Renderer, Tokenizer};
use minds_core::datum::{Datum, LossInputs};
use minds_core::environment::{Environment, EnvironmentReply, Item, LogprobDelta, Oracle, ScoringContext};
use minds_core::ids::{GroupId, ItemKey, PolicyVersion, RolloutId, Token};
use minds_core::reward::{RewardError, Score};
use minds_core::rollout::{Rollout, Turn};
use minds_core::sampling::{Completion, StopReason};
use minds_environments::native;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// One token per byte, except that two line breaks are one token; control tokens from 1000 on.
#[derive(Clone)]
pub struct Bytes {
    pub controls: Vec<&'static str>,
    pub stops: Vec<&'static str>,
    pub bos: Option<&'static str>,
}

/// The token of two line breaks: it shows where texts were encoded in one piece.
pub const TWO_BREAKS: Token = 256;

pub const CHATML: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
pub const LLAMA: [&str; 4] = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"];

pub const DEEPSEEK: [&str; 5] =
    ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "</think>"];
pub const KIMI: [&str; 7] = [
    "<|im_end|>",
    "<|im_middle|>",
    "<|im_system|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<think>",
    "</think>",
];
pub const GPT_OSS: [&str; 7] =
    ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>", "<|endoftext|>"];

impl Bytes {
    pub fn with(controls: &[&'static str]) -> Arc<Self> {
        Arc::new(Self { controls: controls.to_vec(), stops: vec![], bos: None })
    }

    pub fn chatml() -> Arc<Self> {
        Arc::new(Self { controls: CHATML.to_vec(), stops: vec!["<|im_end|>", "<|endoftext|>"], bos: None })
    }

    pub fn named(&self, name: &str) -> Token {
        self.control(name).expect(name)
    }

    /// Tokens of a text in which control tokens are spelled out: what a chat template's output becomes.
    pub fn encode_with_controls(&self, text: &str) -> Vec<Token> {
        let first = self.controls.iter().filter_map(|name| text.find(name).map(|at| (at, *name))).min();
        let Some((at, name)) = first else { return self.encode(text) };
        let mut tokens = self.encode(&text[..at]);
        tokens.push(self.named(name));
        tokens.extend(self.encode_with_controls(&text[at + name.len()..]));
        tokens
    }

    /// The text of tokens with control tokens spelled out.
    pub fn spell(&self, tokens: &[Token]) -> String {
        let mut text = String::new();
        for run in tokens.chunk_by(|a, b| *a < 1000 && *b < 1000) {
            match run {
                [control] if *control >= 1000 => text.push_str(self.controls[*control as usize - 1000]),
                plain => text.push_str(&self.decode(plain)),
            }
        }
        text
    }
}

impl Tokenizer for Bytes {
    fn encode(&self, text: &str) -> Vec<Token> {
        let mut tokens: Vec<Token> = Vec::new();
        let mut bytes = text.bytes().peekable();
        while let Some(byte) = bytes.next() {
            let is_pair = byte == b'\n' && bytes.next_if_eq(&b'\n').is_some();
            tokens.push(if is_pair { TWO_BREAKS } else { byte.into() });
        }
        tokens
    }

    fn control(&self, name: &str) -> Option<Token> {
        (1000..).zip(&self.controls).find(|(_, known)| **known == name).map(|(token, _)| token)
    }

    fn decode(&self, tokens: &[Token]) -> String {
        let mut bytes = Vec::new();
        for token in tokens {
            match *token {
                TWO_BREAKS => bytes.extend(b"\n\n"),
                token => bytes.extend(u8::try_from(token).ok()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn vocab(&self) -> usize {
        1000 + self.controls.len()
    }

    fn stop_tokens(&self) -> Vec<Token> {
        self.stops.iter().map(|name| self.named(name)).collect()
    }

    fn bos(&self) -> Option<Token> {
        self.bos.map(|name| self.named(name))
    }

    fn controls(&self) -> Vec<ControlToken> {
        let control = |(token, name): (Token, &&'static str)| ControlToken {
            name: (*name).to_owned(),
            token,
            takes_space_before: false,
            takes_space_after: false,
        };
        (1000..).zip(&self.controls).map(control).collect()
    }
}

/// A tokenizer over bytes with a chat template.
pub struct Templated {
    bytes: Arc<Bytes>,
    template: ChatTemplate,
    splits_at_controls: bool,
}

impl Templated {
    pub fn new(controls: &[&'static str], template: &str) -> Arc<Self> {
        let template = ChatTemplate { source: template.into(), special_tokens: BTreeMap::new() };
        Arc::new(Self { bytes: Bytes::with(controls), template, splits_at_controls: true })
    }

    /// The same with a vocabulary that reads whole texts only.
    pub fn of_whole_texts(controls: &[&'static str], template: &str) -> Arc<Self> {
        let template = ChatTemplate { source: template.into(), special_tokens: BTreeMap::new() };
        Arc::new(Self { bytes: Bytes::with(controls), template, splits_at_controls: false })
    }
}

impl Tokenizer for Templated {
    fn encode(&self, text: &str) -> Vec<Token> {
        self.bytes.encode(text)
    }
    fn control(&self, name: &str) -> Option<Token> {
        self.bytes.control(name)
    }
    fn decode(&self, tokens: &[Token]) -> String {
        self.bytes.decode(tokens)
    }
    fn vocab(&self) -> usize {
        self.bytes.vocab()
    }
    fn stop_tokens(&self) -> Vec<Token> {
        self.bytes.stop_tokens()
    }
    fn bos(&self) -> Option<Token> {
        None
    }
    fn controls(&self) -> Vec<ControlToken> {
        self.bytes.controls()
    }
    fn splits_at_controls(&self) -> bool {
        self.splits_at_controls
    }
    fn chat_template(&self) -> Option<&ChatTemplate> {
        Some(&self.template)
    }
}

pub fn renderer(name: &str, tokenizer: Arc<Bytes>) -> Arc<dyn Renderer> {
    minds_environments::render::renderer(name, tokenizer).expect(name)
}

pub fn sampled(tokens: Vec<Token>) -> Completion {
    let logprobs = vec![-1.0; tokens.len()];
    Completion::new(tokens, logprobs, StopReason::Stop)
}

/// A question to the reader, spelled out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Query {
    Logprobs {
        prefix: String,
        target: String,
    },
    NextTokens {
        prefix: String,
        k: usize,
    },
    /// What the step is taken on, in two parts: what is read only, and what is learnt.
    LogprobDelta {
        read: String,
        learnt: String,
        prefix: String,
        target: String,
    },
}

type PerToken = Box<dyn Fn(&str, &str) -> f32 + Send + Sync>;
type Step = Box<dyn Fn(&str) -> Result<f64, RewardError> + Send + Sync>;
type Next = Box<dyn Fn(&str) -> Result<Vec<(Token, f32)>, RewardError> + Send + Sync>;

/// A reader that parses ChatML, answers by script and records its queries.
pub struct Reader {
    pub tokenizer: Arc<Bytes>,
    pub renderer: Arc<dyn Renderer>,
    per_token: PerToken,
    next: Next,
    /// The change that a step on this text makes; without it no step can be measured.
    step: Option<Step>,
    /// The number of the query that fails, from 0.
    fails_at: Option<usize>,
    /// Logprobs that are left out at the end of each answer.
    short_by: usize,
    asked: Mutex<Vec<Query>>,
}

impl Reader {
    pub fn new() -> Self {
        let tokenizer = Bytes::chatml();
        Self {
            renderer: renderer("chatml", tokenizer.clone()),
            tokenizer,
            per_token: Box::new(|_, _| -1.0),
            next: Box::new(|_| Ok(vec![(65, -0.5), (66, -1.5)])),
            step: None,
            fails_at: None,
            short_by: 0,
            asked: Mutex::default(),
        }
    }

    /// The logprob of each token of a target (second) after a prefix (first).
    pub fn expecting(mut self, per_token: impl Fn(&str, &str) -> f32 + Send + Sync + 'static) -> Self {
        self.per_token = Box::new(per_token);
        self
    }

    /// The most likely tokens after a prefix.
    pub fn continuing(
        mut self,
        next: impl Fn(&str) -> Result<Vec<(Token, f32)>, RewardError> + Send + Sync + 'static,
    ) -> Self {
        self.next = Box::new(next);
        self
    }

    /// The change of a probe after a step that learns this text.
    pub fn moved_by(
        mut self,
        step: impl Fn(&str) -> Result<f64, RewardError> + Send + Sync + 'static,
    ) -> Self {
        self.step = Some(Box::new(step));
        self
    }

    /// Fails at the query of this number, from 0.
    pub fn failing_at(self, query: usize) -> Self {
        Self { fails_at: Some(query), ..self }
    }

    /// Leaves logprobs out at the end of each answer.
    pub fn short_by(self, tokens: usize) -> Self {
        Self { short_by: tokens, ..self }
    }

    pub fn asked(&self) -> Vec<Query> {
        self.asked.lock().expect("no test panics while it asks").clone()
    }

    fn ask(&self, query: Query) -> Result<(), RewardError> {
        let mut asked = self.asked.lock().expect("no test panics while it asks");
        asked.push(query);
        if self.fails_at == Some(asked.len() - 1) { Err(RewardError::Service("away".into())) } else { Ok(()) }
    }

    /// The score of one answer that ended with its stop.
    pub fn score(&self, env: &dyn Environment, item: &Item, answer: &str) -> Result<Score, RewardError> {
        self.score_rollout(env, item, &rollout(answer, true))
    }

    pub fn score_rollout(
        &self,
        env: &dyn Environment,
        item: &Item,
        rollout: &Rollout,
    ) -> Result<Score, RewardError> {
        let scene = ScoringContext { item, rollout, renderer: &*self.renderer, oracle: self };
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(env.score(scene))
    }
}

#[async_trait]
impl Oracle for Reader {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        let (text, answer) = (self.tokenizer.spell(&prefix), self.tokenizer.spell(&target));
        self.ask(Query::Logprobs { prefix: text.clone(), target: answer.clone() })?;
        Ok(vec![(self.per_token)(&text, &answer); target.len() - self.short_by].into())
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        let text = self.tokenizer.spell(&prefix);
        self.ask(Query::NextTokens { prefix: text.clone(), k })?;
        (self.next)(&text).map(Into::into)
    }

    async fn logprob_delta(
        &self,
        text: Datum,
        prefix: Arc<[Token]>,
        target: Arc<[Token]>,
    ) -> Result<LogprobDelta, RewardError> {
        let Some(step) = &self.step else { return Nobody.logprob_delta(text, prefix, target).await };
        let LossInputs::Weights(weights) = text.inputs() else { panic!("a step learns by weights") };
        let read = weights.iter().take_while(|weight| **weight == 0.0).count();
        assert!(weights[read..].iter().all(|weight| *weight == 1.0));
        let learnt = self.tokenizer.spell(&text.targets()[read..]);
        let read = self.tokenizer.spell(&text.input()[..=read]);
        let (prefix, target) = (self.tokenizer.spell(&prefix), self.tokenizer.spell(&target));
        self.ask(Query::LogprobDelta { read, learnt: learnt.clone(), prefix, target })?;
        step(&learnt).map(|change| LogprobDelta { before: -7.0, after: change - 7.0 })
    }
}

/// An oracle with the abilities that every oracle has.
struct Nobody;

#[async_trait]
impl Oracle for Nobody {
    async fn logprobs(&self, _: Arc<[Token]>, _: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        unreachable!("only what has a default is asked")
    }

    async fn next_tokens(&self, _: Arc<[Token]>, _: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        unreachable!("only what has a default is asked")
    }
}

/// A rollout of several turns that all ended; the tokens of each answer spell it.
pub fn rollout_of(answers: &[&str]) -> Rollout {
    let tokenizer = Bytes::chatml();
    let turns = answers.iter().map(|answer| Turn {
        prompt: tokenizer.encode("?").into(),
        completion: sampled(tokenizer.encode_with_controls(&format!("{answer}<|im_end|>"))),
        text: (*answer).into(),
        complete: true,
    });
    Rollout { turns: turns.collect(), ..rollout("", true) }
}

/// What the environment says next, after these answers were given and replied to.
pub fn reply(env: &dyn Environment, item: &Item, conversation: &[Message]) -> EnvironmentReply {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(env.reply(item, conversation)).expect("it replies")
}

/// A rollout of one turn.
pub fn rollout(answer: &str, complete: bool) -> Rollout {
    let id = RolloutId { group: GroupId(0), member: 0 };
    let turn = Turn { prompt: vec![1].into(), completion: sampled(vec![2]), text: answer.into(), complete };
    Rollout { turns: vec![turn], ..Rollout::new(id, ItemKey { component: 0, item: 0 }, PolicyVersion(0)) }
}

pub fn load(id: &str, args: Value) -> Arc<dyn Environment> {
    native::load(id, args.as_object().expect("a table"), 0).expect("the arguments are right")
}

pub fn last(item: &Item) -> &Message {
    item.prompt.last().expect("a prompt is never empty")
}

/// The value of a line of an item's question, for example of `Probe: …`.
pub fn line<'a>(item: &'a Item, label: &str) -> &'a str {
    let mut lines = last(item).content.lines();
    lines.find_map(|line| line.strip_prefix(label)).unwrap_or_default().trim()
}
