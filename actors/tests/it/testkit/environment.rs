//! A scripted environment and a renderer of bytes.

use async_trait::async_trait;
use minds_core::chat::{Message, ParsedCompletion, PromptError, Renderer, Role, Termination};
use minds_core::datum::Datum;
use minds_core::environment::{
    Environment, EnvironmentReply, Item, RolloutSession, ScoringContext, SelfDrivenEnvironment, SessionError,
    SessionRollout,
};
use minds_core::ids::{RolloutId, Token};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use minds_core::rollout::Turn;
use minds_core::sampling::{Completion, SampleRequest, SamplingParams, Stop};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a reward does.
#[derive(Clone, Debug)]
pub enum Judge {
    Reward(f32),
    Missing(RewardError),
    Panic(&'static str),
    Never,
}

type Script<T> = Box<dyn Fn(RolloutId, u32) -> T + Send + Sync>;

pub struct ScriptedEnvironment {
    /// The reward of a rollout at its n-th try, counted from 0.
    pub judge: Script<Judge>,
    /// How long it takes.
    pub latency: Script<Duration>,
    /// Answers per rollout.
    pub turns: usize,
    /// How many times a reward asks the oracle the same question of all episodes.
    pub questions: usize,
    /// How many questions of its own each reward asks, all at a time.
    pub own_questions: u32,
    /// Whether a reward is how one gradient step changes a logprob.
    pub shifts: bool,
    /// Whether these rewards differ inside a group, too.
    pub judge_shift: bool,
    /// What it keeps in checkpoints: the number of rewards.
    pub learnt: AtomicU64,
    /// Whether it is self-driven.
    pub drives_itself: bool,
    /// Whether its rewards compare the members of a group.
    pub compares: bool,
    /// The logprob that each answer brought.
    pub heard: Mutex<Vec<(RolloutId, f32)>>,
    /// Panics when this item is drawn, counted from 0.
    pub broken_item: Option<u64>,
    /// Items drawn, in order.
    pub drawn: Mutex<Vec<u64>>,
    tries: Mutex<HashMap<RolloutId, u32>>,
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
            drives_itself: false,
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
    /// How often this rollout was scored before.
    fn attempt(&self, id: RolloutId) -> u32 {
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

    async fn reply(&self, _: &Item, conversation: &[Message]) -> Result<EnvironmentReply, RewardError> {
        self.replies.fetch_add(1, Relaxed);
        let answers = conversation.iter().filter(|m| m.role == Role::Assistant).count();
        if answers >= self.turns {
            return Ok(EnvironmentReply::Done);
        }
        Ok(EnvironmentReply::Continue(vec![Message::user(format!("go on {answers}"))]))
    }

    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let id = scene.rollout.id;
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
            let shift = scene.oracle.logprob_delta(text, [1, 2].into(), [3].into()).await?;
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

    fn self_driven(&self) -> Option<&dyn SelfDrivenEnvironment> {
        self.drives_itself.then_some(self)
    }
}

/// Runs one session after the other: `turns` samples, a query, then the scripted reward. Without a reward the session
/// ends without a result.
#[async_trait]
impl SelfDrivenEnvironment for ScriptedEnvironment {
    async fn run_rollouts(&self, item: &Item, sessions: Vec<RolloutSession>) {
        for session in sessions {
            let mut turns = Vec::new();
            let mut prompt = ScriptedRenderer.prompt(&item.prompt).unwrap();
            while turns.len() < self.turns {
                let request = SampleRequest::new(prompt.clone().into(), 1, SamplingParams::plain(8));
                let answer = session.sampler.sample(request).await.unwrap().sequences.remove(0);
                let before = prompt.clone().into();
                prompt.extend(&answer.tokens);
                let text = format!("turn {}", turns.len());
                turns.push(Turn { prompt: before, completion: answer, text, complete: true });
                tokio::time::sleep((self.latency)(session.rollout, 0)).await;
            }
            for _ in 0..self.questions {
                let logprobs = session.oracle.logprobs([1, 2].into(), [3].into()).await.unwrap();
                self.heard.lock().unwrap().push((session.rollout, logprobs[0]));
            }
            match (self.judge)(session.rollout, self.attempt(session.rollout)) {
                Judge::Reward(value) => {
                    let score = Score { reward: Reward::new(value).unwrap(), metrics: Metrics::new() };
                    session.finish(Ok(SessionRollout { turns, opening: Arc::default(), score }));
                }
                Judge::Missing(cause) => session.finish(Err(SessionError { cause, turns })),
                Judge::Panic(words) => panic!("{words}"),
                Judge::Never => {}
            }
        }
    }

    fn compares_rollouts(&self) -> bool {
        self.compares
    }
}

/// Every byte is a token; a conversation is its messages in one row.
pub struct ScriptedRenderer;

impl Renderer for ScriptedRenderer {
    fn name(&self) -> &str {
        "bytes"
    }

    fn prompt(&self, messages: &[Message]) -> Result<Vec<Token>, PromptError> {
        Ok(messages.iter().flat_map(|m| m.content.bytes()).map(Token::from).collect())
    }

    fn answer(&self, text: &str) -> Vec<Token> {
        text.bytes().map(Token::from).collect()
    }

    fn stop(&self) -> Stop {
        Stop::ModelDefault
    }

    fn text(&self, tokens: &[Token]) -> String {
        tokens.iter().map(|token| char::from(*token as u8)).collect()
    }

    fn parse(&self, sampled: &Completion) -> ParsedCompletion {
        ParsedCompletion { text: self.text(&sampled.tokens), termination: Termination::Stop }
    }
}
