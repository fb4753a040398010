//! What travels between a run and a Python host. `environments/python/minds_host` speaks the same words.

use minds_core::ids::Token;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// To the host.
#[derive(Debug, Serialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub(super) enum ToWorker<'a> {
    /// First: who is asked for what, and under which token.
    Hello { facts: &'a ModelInfo, token: &'a str, seed: u64 },
    /// Second: what to load.
    Load { path: Option<&'a str>, module: &'a str, args: &'a Map<String, Value> },
    /// Rows of the data as people are shown them, as many as one message holds with ease.
    Rows { call: u64, start: u64, count: u64 },
    /// One rollout.
    Run { rollout: &'a str, group: &'a str, members: usize, item: u64, url: &'a str, sampling: &'a Value },
    /// A rollout that nobody waits for any more.
    Cancel { rollout: &'a str, group: &'a str },
    /// A group of which no more members will come.
    Forget { group: &'a str },
    /// The answer to a question.
    Answer { call: u64, ok: Option<Value>, error: Option<String> },
    /// Asks for a sign of life.
    Beat { n: u64 },
}

/// What a host is told about the model.
#[derive(Debug, Serialize)]
pub(super) struct ModelInfo {
    pub base_model: String,
    pub vocab: usize,
    pub eos: Option<Token>,
    pub bos: Option<Token>,
    /// What ends an answer: tokens or texts.
    pub stop: Value,
}

/// From the host.
#[derive(Debug, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub(super) enum FromWorker {
    /// The environment is loaded.
    Ready(EnvDescription),
    /// It is not, or a request failed. `missing`: there is no such module.
    Failed {
        call: u64,
        #[serde(default)]
        missing: bool,
        error: PythonError,
    },
    Rows {
        call: u64,
        rows: Vec<Value>,
    },
    /// A question, of a rollout where it can be told.
    Ask {
        call: u64,
        rollout: Option<String>,
        op: WorkerRequest,
    },
    /// A sign of life, and how many seconds ago the event loop last turned.
    Beat {
        n: u64,
        lag: f64,
    },
    /// A rollout of a group whose rewards compare its members reached another phase.
    Phase {
        rollout: String,
        phase: GroupPhase,
    },
    /// A rollout has ended.
    Done {
        rollout: String,
        report: Option<RolloutReport>,
        #[serde(default)]
        error: Option<PythonError>,
    },
}

/// What happens to a rollout between its last answer and its reward, where rewards compare the members of a group.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum GroupPhase {
    /// It has been played and waits for the other members.
    Waits,
    /// It is compared with them.
    Compared,
}

/// What a loaded environment says about itself.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct EnvDescription {
    /// Which contract it keeps: `classic`, `verifiers` or `verifiers v1`.
    pub kind: String,
    /// Its class.
    pub class: String,
    /// Release of Python.
    pub python: String,
    /// Release of the verifiers library, where it is installed.
    pub verifiers: Option<String>,
    /// Items in one cycle of its data.
    pub items: u64,
    /// Columns of its rows.
    pub columns: Vec<String>,
    /// Its reward functions, by name.
    pub rewards: Vec<String>,
    /// Whether rewards compare the members of a group.
    pub group_rewards: bool,
    /// Whether its rewards may borrow adapters.
    pub borrows: bool,
    /// The prompt of the first item.
    pub preview: Vec<ChatMessage>,
    /// Digest of a sample of its rows: every process must load the same. Empty where there are none.
    #[serde(default)]
    pub digest: String,
    /// What its author should know.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// An exception of user code.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PythonError {
    pub r#type: String,
    pub message: String,
    pub traceback: String,
}

impl PythonError {
    /// Type and message, and where it was raised.
    pub(super) fn describe(&self) -> String {
        let Self { r#type, message, traceback } = self;
        format!("{}: {message}\n{}", r#type, traceback.trim_end())
    }
}

/// What came out of a rollout.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct RolloutReport {
    pub reward: f64,
    /// Rewards that were no numbers, or reward functions that raised where the library makes a 0 of that.
    #[serde(default)]
    pub coerced: u32,
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// The answers that the rollout is made of, by id; all of them if it is not told.
    #[serde(default)]
    pub responses: Option<Vec<String>>,
    /// How many answers the rollout is made of, where their ids are not told.
    #[serde(default)]
    pub answers: Option<usize>,
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// A question of user code.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum WorkerRequest {
    /// The policy's next answer; part of the rollout.
    Turn {
        messages: Option<Vec<ChatMessage>>,
        tokens: Option<Vec<Token>>,
        draw: SamplingOverrides,
    },
    /// Samples aside.
    Sample {
        tokens: Vec<Token>,
        n: usize,
        draw: SamplingOverrides,
        prompt_logprobs: bool,
        topk_prompt: usize,
        topk_sample: usize,
        weights: WeightsSource,
    },
    Logprobs {
        tokens: Vec<Token>,
        weights: WeightsSource,
    },
    Encode {
        text: String,
        special: bool,
    },
    Decode {
        tokens: Vec<Token>,
    },
    Render {
        messages: Vec<ChatMessage>,
    },
    Parse {
        tokens: Vec<Token>,
    },
    ShadowOpen,
    ShadowPass {
        backward: bool,
        loss: String,
        data: Vec<WorkerDatum>,
    },
    ShadowStep {
        adam: BTreeMap<String, f64>,
    },
    ShadowExport,
}

/// Which weights user code asks.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(super) enum WeightsSource {
    /// The policy version that samples the rollout.
    Policy,
    /// Those made of a borrowed adapter, by their handle.
    Exported(u64),
    /// The base model of the run.
    Base,
    /// Saved ones, by their path on the service.
    Saved(String),
}

/// A text to learn, as user code made it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WorkerDatum {
    pub input: Vec<Token>,
    pub targets: Vec<Token>,
    pub weights: Vec<f32>,
}

/// How an answer is drawn where it is not drawn as the run says.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub(super) struct SamplingOverrides {
    #[serde(default)]
    pub max_tokens: Option<usize>,
    #[serde(default)]
    pub temperature: Option<f32>,
    #[serde(default)]
    pub top_p: Option<f32>,
    #[serde(default)]
    pub top_k: Option<usize>,
    /// What ends the answer; nothing where it is as the run says.
    #[serde(default)]
    pub stop: Option<StopOverride>,
    #[serde(default)]
    pub seed: Option<u64>,
}

/// What ends an answer; the empty list is no stop at all.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub(super) enum StopOverride {
    Tokens(Vec<Token>),
    Texts(Vec<String>),
}

/// A chat message as the field writes it.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text, parts, or nothing.
    #[serde(default)]
    pub content: Value,
    /// Calls of tools that the policy made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Which call this is the result of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct ToolCall {
    /// Its name in the conversation.
    #[serde(default)]
    pub id: String,
    /// Always `function`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// What is called.
    pub function: ToolFunction,
}

/// A function with its arguments.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct ToolFunction {
    /// Its name.
    pub name: String,
    /// Its arguments, as JSON in a text.
    #[serde(default)]
    pub arguments: String,
}
