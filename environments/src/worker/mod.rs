//! Environments that are Python packages, unchanged, in processes of their own.
//!
//! Whatever user code does, only the rollouts of its own process pay for it, each with its cause: a crash, a hang, a
//! flood of output, a lie. A process never sees the service's key. The policy's tokens and log-probs are those that were
//! sampled, taken down on this side; nothing that Python says about them is believed.
//!
//! Read [`PythonEnvironment`] first; then `crew` (how many processes), `worker` (one of them), `rollout` (one game in
//! it), `ask` and `desk` (what a game may ask, and who answers) and `endpoint` (how it asks over HTTP).

mod ask;
mod clock;
mod crew;
mod desk;
mod endpoint;
mod environment;
mod folder;
mod frame;
mod host;
mod locate;
mod message;
mod options;
mod output;
mod process;
mod record;
mod replay;
mod rollout;
mod tools;
mod unreachable;
mod variety;
mod voice;
#[expect(clippy::module_inception, reason = "one worker is the heart of the folder of workers")]
mod worker;

pub use environment::PythonEnvironment;
pub use host::find;
pub use locate::is_path;
pub use message::{Description, Function, Said, ToolCall};
pub use options::{BadReward, PythonOptions};
pub use voice::Voice;
