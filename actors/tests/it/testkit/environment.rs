//! A scripted environment and a renderer of bytes.

use async_trait::async_trait;
use minds_core::chat::{Message, Parsed, Renderer, Role, Termination};
use minds_core::datum::Datum;
use minds_core::environment::{Conductor, Environment, Item, Performance, Reply, Scene, Seat};
use minds_core::episode::Turn;
use minds_core::ids::{EpisodeId, Token};
use minds_core::reward::{Metrics, Missing, Reward, Score};
use minds_core::sampling::{SampleRequest, Sampled, SamplingParams, Stop};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a reward does.
#[derive(Clone, Debug)]
pub enum Judge {
    Reward(f32),
    Missing(Missing),
    Panic(&'static str),
    Never,
}

type Script<T> = Box<dyn Fn(EpisodeId, u32) -> T + Send + Sync>;

pub struct ScriptedEnvironment {
    /// The reward of an episode at its n-th try, counted from 0.
    pub judge: Script<Judge>,
    /// How long it takes.
    pub latency: Script<Duration>,
    /// Answers per episode.
    pub turns: usize,
    /// How many times a reward asks the oracle the same question of all episodes.
    pub questions: usize,
    /// How many questions of its own each reward asks, all at a time.
    pub own_questions: u32,
    /// Whether a reward is how one gradient step changes a log-prob.
    pub shifts: bool,
    /// Whether these rewards differ inside a group, too.
    pub judge_shift: bool,
    /// What it keeps in checkpoints: the number of rewards.
    pub learnt: AtomicU64,
    /// Whether it plays by itself.
    pub conducts: bool,
    /// Whether its rewards compare the members of a group.
    pub compares: bool,
    /// The log-prob that each answer brought.
    pub heard: Mutex<Vec<(EpisodeId, f32)>>,
    /// Panics when this item is drawn, counted from 0.
    pub broken_item: Option<u64>,
    /// Items drawn, in order.
    pub drawn: Mutex<Vec<u64>>,
    tries: Mutex<HashMap<EpisodeId, u32>>,
    pub replies: AtomicU64,
}

impl Default for ScriptedEnvironment {
    fn default() -> Self {
        Self {
            judge: super::reward_by_member(),
            latency: Box::new(|_, _| Duration::ZERO),
            turns: 1,
            questions: 0,
            own_questions: 0,
            shifts: false,
            judge_shift: false,
            learnt: AtomicU64::new(0),
            conducts: false,
            compares: false,
            heard: Mutex::default(),
            broken_item: None,
            drawn: Mutex::default(),
            tries: Mutex::default(),
            replies: AtomicU64::new(0),
        }
    }
}

impl ScriptedEnvironment {
    /// How often this episode was judged before.
    fn attempt(&self, id: EpisodeId) -> u32 {
        let mut tries = self.tries.lock().unwrap();
        let tries = tries.entry(id).or_default();
        *tries += 1;
        *tries - 1
    }
}

#[async_trait]
impl Environment for ScriptedEnvironment {
    fn id(&self) -> &str {
        "scripted"
    }

    fn items(&self) -> NonZeroU64 {
        NonZeroU64::new(1000).unwrap()
    }

    fn item(&self, index: u64) -> Item {
        let number = self.drawn.lock().unwrap().len() as u64;
        assert_ne!(self.broken_item, Some(number), "no such item");
        self.drawn.lock().unwrap().push(index);
        let prompt = vec![Message::user(format!("item {index}"))];
        Item { index, prompt, answer: None, info: serde_json::Value::Null }
    }

    fn memory(&self) -> Option<serde_json::Value> {
        Some(self.learnt.load(Relaxed).into())
    }

    async fn reply(&self, _: &Item, conversation: &[Message]) -> Result<Reply, Missing> {
        self.replies.fetch_add(1, Relaxed);
        let answers = conversation.iter().filter(|m| m.role == Role::Assistant).count();
        if answers >= self.turns {
            return Ok(Reply::Done);
        }
        Ok(Reply::Continue(vec![Message::user(format!("go on {answers}"))]))
    }

    async fn score(&self, scene: Scene<'_>) -> Result<Score, Missing> {
        let id = scene.episode.id;
        let attempt = self.attempt(id);
        tokio::time::sleep((self.latency)(id, attempt)).await;
        self.learnt.fetch_add(1, Relaxed);
        for _ in 0..self.questions {
            let logprobs = scene.oracle.logprobs([1, 2].into(), [3].into()).await?;
            self.heard.lock().unwrap().push((id, logprobs[0]));
        }
        let own = |n: u32| {
            let prefix = [id.group.0 as Token, id.member, n];
            scene.oracle.logprobs(prefix.into(), [3].into())
        };
        futures::future::try_join_all((0..self.own_questions).map(own)).await?;
        if self.shifts {
            let text = Datum::supervised(&[1, 2], &[3]).unwrap();
            let shift = scene.oracle.shift(text, [1, 2].into(), [3].into()).await?;
            let by_member = if self.judge_shift { id.member as f32 } else { 0.0 };
            let metrics = Metrics::from([("change".into(), shift.change())]);
            return Ok(Score { reward: Reward::new(shift.change() as f32 + by_member)?, metrics });
        }
        match (self.judge)(id, attempt) {
            Judge::Reward(value) => Ok(Score { reward: Reward::new(value)?, metrics: Metrics::new() }),
            Judge::Missing(missing) => Err(missing),
            Judge::Panic(words) => panic!("{words}"),
            Judge::Never => std::future::pending().await,
        }
    }

    fn conductor(&self) -> Option<&dyn Conductor> {
        self.conducts.then_some(self)
    }
}

/// One seat after the other: `turns` samples, a question, then the judge's word; no word leaves no result.
#[async_trait]
impl Conductor for ScriptedEnvironment {
    async fn play(&self, item: &Item, seats: Vec<Seat>) {
        for seat in seats {
            let mut turns = Vec::new();
            let mut prompt = ScriptedRenderer.prompt(&item.prompt);
            while turns.len() < self.turns {
                let request = SampleRequest::new(prompt.clone().into(), 1, SamplingParams::plain(8));
                let answer = seat.sampler.sample(request).await.unwrap().sequences.remove(0);
                let before = prompt.clone().into();
                prompt.extend(&answer.tokens);
                turns.push(Turn { prompt: before, answer, text: String::new(), complete: true });
                tokio::time::sleep((self.latency)(seat.episode, 0)).await;
            }
            for _ in 0..self.questions {
                let logprobs = seat.oracle.logprobs([1, 2].into(), [3].into()).await.unwrap();
                self.heard.lock().unwrap().push((seat.episode, logprobs[0]));
            }
            match (self.judge)(seat.episode, self.attempt(seat.episode)) {
                Judge::Reward(value) => {
                    let score = Score { reward: Reward::new(value).unwrap(), metrics: Metrics::new() };
                    seat.leave(Ok(Performance { turns, opening: Arc::default(), score }));
                }
                Judge::Missing(missing) => seat.leave(Err(missing)),
                Judge::Panic(words) => panic!("{words}"),
                Judge::Never => {}
            }
        }
    }

    fn compares(&self) -> bool {
        self.compares
    }
}

/// Every byte is a token; a conversation is its messages in one row.
pub struct ScriptedRenderer;

impl Renderer for ScriptedRenderer {
    fn name(&self) -> &str {
        "bytes"
    }

    fn prompt(&self, messages: &[Message]) -> Vec<Token> {
        messages.iter().flat_map(|m| m.content.bytes()).map(Token::from).collect()
    }

    fn answer(&self, text: &str) -> Vec<Token> {
        text.bytes().map(Token::from).collect()
    }

    fn stop(&self) -> Stop {
        Stop::ModelDefault
    }

    fn parse(&self, sampled: &Sampled) -> Parsed {
        let text = sampled.tokens.iter().map(|t| char::from(*t as u8)).collect();
        Parsed { text, termination: Termination::Stop }
    }
}
