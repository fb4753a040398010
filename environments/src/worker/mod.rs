//! Environments that are Python packages, unchanged, in processes of their own.
//!
//! Whatever user code does, only the rollouts of its own process fail, each with its cause: a crash, a hang, a
//! flood of output, a false report. A process is never given the service's key. The policy's tokens and
//! logprobs are those that were sampled, recorded on this side; nothing that Python reports about them is trusted.
//!
//! Read [`PythonEnvironment`] first; then `pool` (how many processes), `worker_process` (one of them), `rollout` (one
//! rollout in it), `request` and `request_handler` (what a rollout may request, and what answers) and `endpoint` (the
//! same over HTTP).

mod clock;
mod endpoint;
mod environment;
mod json_lines;
mod locate;
mod message;
mod model_profile;
mod options;
mod output;
mod pool;
mod process_group;
mod record;
mod replay;
mod request;
mod request_handler;
mod rollout;
mod setup;
mod tool_conversation;
mod tool_record;
mod tools;
mod unreachable;
mod variety;
mod worker_files;
mod worker_process;

pub use environment::PythonEnvironment;
pub use message::{ChatMessage, EnvDescription, ToolCall, ToolFunction};
pub use model_profile::ModelProfile;
pub use options::{BadReward, PythonOptions};
pub use setup::{find_package, hide_own_variables, interpreter};
