//! Messages between a run and a Python worker. `environments/python/minds_host` implements the same protocol.

use minds_core::ids::Token;
use minds_core::optim::AdamParams;
use minds_core::reward::RewardError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Messages from the run to the worker.
#[derive(Debug, Serialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub(super) enum ToWorker<'a> {
    /// First message: facts about the model, the access token and the seed.
    Hello { facts: &'a ModelInfo, token: &'a str, seed: u64 },
    /// Second message: what to load.
    Load { path: Option<&'a str>, module: &'a str, args: &'a Map<String, Value> },
    /// Requests rows of the data for display, as many as one message holds with ease.
    Rows { call: u64, start: u64, count: u64 },
    /// Requests the first prompt of an item: a rollout begins and ends before it samples.
    Observe { call: u64, item: u64 },
    /// Starts one rollout in the worker.
    Run { rollout: &'a str, group: &'a str, members: usize, item: u64, url: &'a str, sampling: &'a Value },
    /// Cancels a rollout whose result is no longer needed.
    Cancel { rollout: &'a str, group: &'a str },
    /// No more members of this group will come.
    Forget { group: &'a str },
    /// The response to a request.
    Answer { call: u64, ok: Option<Value>, error: Option<String> },
    /// Asks for a heartbeat.
    Beat { n: u64 },
}

/// Facts about the model that a worker receives.
#[derive(Debug, Serialize)]
pub(super) struct ModelInfo {
    pub base_model: String,
    pub vocab: usize,
    pub eos: Option<Token>,
    pub bos: Option<Token>,
    /// Stop condition of a completion: tokens or texts.
    pub stop: Value,
}

/// Messages from the worker to the run.
#[derive(Debug, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub(super) enum FromWorker {
    /// The environment is loaded.
    Ready(EnvDescription),
    /// Loading or a request failed. `missing`: there is no such module.
    Failed {
        call: u64,
        #[serde(default)]
        missing: bool,
        error: PythonError,
    },
    /// The rows or the messages that were requested.
    Reply { call: u64, values: Vec<Value> },
    /// A request, with its rollout if that is known.
    Ask { call: u64, rollout: Option<String>, op: WorkerRequest },
    /// A heartbeat, and how many seconds ago the event loop last turned.
    Beat { n: u64, lag: f64 },
    /// A rollout of a group whose rewards compare its members reached another phase.
    Phase { rollout: String, phase: GroupPhase },
    /// A rollout has ended.
    Done {
        rollout: String,
        report: Option<RolloutReport>,
        #[serde(default)]
        error: Option<PythonError>,
    },
}

/// Phase of a rollout between its last turn and its reward, where rewards compare the members of a group.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum GroupPhase {
    /// It has been sampled and waits for the other members.
    Waits,
    /// It is being compared with the other members.
    Compared,
}

/// What a loaded environment reports about itself.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct EnvDescription {
    /// The contract that it implements: `classic`, `verifiers` or `verifiers v1`.
    pub kind: String,
    /// Name of its Python class.
    pub class: String,
    /// Python version of the interpreter.
    pub python: String,
    /// Version of the verifiers library, if it is installed.
    pub verifiers: Option<String>,
    /// Number of items in one cycle of its data.
    pub items: u64,
    /// Names of the columns of its rows.
    pub columns: Vec<String>,
    /// Names of its reward functions.
    pub rewards: Vec<String>,
    /// Whether rewards compare the members of a group.
    pub group_rewards: bool,
    /// Whether its rewards may lease shadow adapters.
    pub borrows: bool,
    /// The prompt of the first item.
    pub preview: Vec<ChatMessage>,
    /// Digest of a sample of its rows, which must be the same in every process. Empty if there are no rows.
    #[serde(default)]
    pub digest: String,
    /// Hints for the author of the environment.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// An exception that user code raised.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PythonError {
    pub r#type: String,
    pub message: String,
    pub traceback: String,
}

impl PythonError {
    /// Type, message and traceback of the exception.
    pub(super) fn describe(&self) -> String {
        let Self { r#type, message, traceback } = self;
        format!("{}: {message}\n{traceback}", r#type).trim_end().to_owned()
    }
}

/// Result of a finished rollout.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct RolloutReport {
    /// `None` for a value that is not a finite number.
    pub reward: Option<f64>,
    /// Number of rewards that count as 0 in `reward`, because their code raised or returned no finite number.
    #[serde(default)]
    pub coerced: u32,
    /// Why, for the first of them; none only if `coerced` is 0.
    #[serde(default)]
    pub errors: Vec<PythonError>,
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// Ids of the completions that the rollout consists of; `None` means all of them.
    #[serde(default)]
    pub responses: Option<Vec<String>>,
    /// Number of completions that the rollout consists of, if their ids are not known.
    #[serde(default)]
    pub answers: Option<usize>,
}

impl RolloutReport {
    /// Refuses a report whose number of completions is not the number that was `given`.
    pub(super) fn check_count(&self, given: usize) -> Result<(), RewardError> {
        match self.answers {
            Some(told) if told != given => Err(RewardError::Environment(format!(
                "the environment reports {told} completions, but {given} were sampled: ambiguous which of them count"
            ))),
            _ => Ok(()),
        }
    }
}

/// A request of user code.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum WorkerRequest {
    /// The policy's next completion, which becomes part of the rollout.
    Turn {
        messages: Option<Vec<ChatMessage>>,
        tokens: Option<Vec<Token>>,
        draw: SamplingOverrides,
    },
    /// Samples that do not become part of the rollout.
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
        adam: AdamParams,
    },
    ShadowExport,
}

/// Which weights answer a request of user code.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(super) enum WeightsSource {
    /// The policy version that samples the rollout.
    Policy,
    /// Weights exported from a leased adapter, by their handle.
    Exported(u64),
    /// The base model of the run.
    Base,
    /// Saved weights, by their path on the service.
    Saved(String),
}

/// A text to train on, as user code made it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WorkerDatum {
    pub input: Vec<Token>,
    pub targets: Vec<Token>,
    pub weights: Vec<f32>,
}

/// Sampling parameters that override those of the run. `None` keeps the run's value, except for `seed`.
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
    /// What ends the completion; `None` keeps the stop of the run.
    #[serde(default)]
    pub stop: Option<StopOverride>,
    #[serde(default)]
    pub seed: Option<u64>,
}

/// What ends a completion; an empty list disables stops.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub(super) enum StopOverride {
    Tokens(Vec<Token>),
    Texts(Vec<String>),
}

/// A chat message in the common JSON form.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text, parts or null.
    #[serde(default)]
    pub content: Value,
    /// Tool calls that the policy made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Id of the call that this is the result of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// A tool call of the policy.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct ToolCall {
    /// Id of the call within the conversation.
    #[serde(default)]
    pub id: String,
    /// Type of the call, always `function`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// Called function with its arguments.
    pub function: ToolFunction,
}

/// A function call with its arguments.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct ToolFunction {
    /// Name of the function.
    pub name: String,
    /// Arguments, encoded as a JSON text.
    #[serde(default)]
    pub arguments: String,
}
