//! The messages between a run and its workers, and their encoding.
//!
//! A message is one byte with the version of the encoding, one byte that is 1 if the rest is compressed with zstd, and
//! the MessagePack body. Unknown versions are rejected: a run and its workers must be of the same release.

use minds_core::datum::Datum;
use minds_core::environment::{FrozenWeights, Item, LogprobDelta, SessionError, SessionRollout};
use minds_core::ids::{PolicyVersion, RolloutId, Token};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::reward::{RewardError, Score};
use minds_core::rollout::Rollout;
use minds_core::sampling::{SampleRequest, SampleResponse};
use minds_core::service::{BackendError, ForwardOutput, OptimStep};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Version of the encoding, in the first byte of each message.
const VERSION: u8 = 3;
/// Size from which messages are compressed, in bytes.
const COMPRESSED_FROM: usize = 2048;
/// Largest decompressed size of a message, in bytes.
const LARGEST: usize = 256 << 20;

/// A unit of work for a worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job<'a> {
    /// Name of the environment in the run.
    pub environment: Cow<'a, str>,
    /// The work, by kind.
    pub work: JobWork<'a>,
}

/// The kinds of work for a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum JobWork<'a> {
    /// Compute the reward of a rollout.
    Score {
        /// The item that was sampled.
        item: Cow<'a, Item>,
        /// The rollout to score.
        rollout: Cow<'a, Rollout>,
    },
    /// Run a self-driven environment.
    Generate {
        /// The item to sample.
        item: Cow<'a, Item>,
        /// The rollouts to generate, all of one group.
        sessions: Vec<SessionStamp>,
    },
}

/// Identity of a rollout to generate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionStamp {
    /// Id of the rollout.
    pub rollout: RolloutId,
    /// Number of earlier attempts that left no result.
    pub attempt: u32,
    /// Version of the weights that sample it.
    pub policy: PolicyVersion,
}

/// Worker → run: the result of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobResult {
    /// Name of the worker that finished the job.
    pub worker: String,
    /// Number of deliveries of the job, including this one.
    pub delivery: u64,
    /// Time that the worker spent on the job.
    pub took: Duration,
    /// The outcome, by kind of work.
    pub outcome: Outcome,
}

/// Outcome of a job, by kind of work.
#[derive(Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The reward, or the error that left the rollout without one.
    Scored(Result<Score, RewardError>),
    /// The rollouts in the order of the job's sessions.
    Generated(Vec<Result<SessionRollout, SessionError>>),
    /// The cause for which no worker finished the job.
    Dead(String),
}

/// Worker → run: a question about a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// Id of the job.
    pub job: String,
    /// Number of the delivery of the job that asks, from 1.
    pub delivery: u64,
    /// Number of the question within this delivery, from 0. A repeated question keeps its number.
    pub number: u64,
    /// Index among the sessions of the job; 0 for a job that scores a rollout.
    pub session: usize,
    /// The query, by kind.
    pub query: Query,
}

/// The kinds of questions that a worker asks.
#[derive(Debug, Serialize, Deserialize)]
pub enum Query {
    /// Whether the run waits for the result. Also reports that a worker has started the job.
    Wanted {
        /// Name of the worker that asks.
        worker: String,
    },
    /// Not a question: the worker stops and returns the job to the queue. The delivery does not count as a failure.
    HandedBack,
    /// Logprobs of a target after a prefix.
    Logprobs(Arc<[Token]>, Arc<[Token]>),
    /// The most likely tokens after a prefix; the second value is their number.
    NextTokens(Arc<[Token]>, usize),
    /// The change of a target's logprobs after a prefix, from one gradient step on a text.
    LogprobDelta(Datum, Arc<[Token]>, Arc<[Token]>),
    /// Samples from these weights.
    Sample(SampleRequest, SampledWeights),
    /// The logprob of each token under these weights.
    TokenLogprobs {
        /// The tokens, the prefix included.
        tokens: Arc<[Token]>,
        /// First position to score.
        from: usize,
        /// The weights that score them.
        weights: SampledWeights,
    },
    /// A shadow adapter for the session, until the job ends.
    LeaseAdapter,
    /// A request to the session's adapter. The run executes it once, even if the question is repeated.
    Train(LeasedAdapterRequest),
}

/// The weights of a query.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SampledWeights {
    /// The weights that sample the rollout.
    Policy,
    /// Weights that training never changes.
    Frozen(FrozenWeights),
    /// An export of the session's adapter, by its number.
    Exported(usize),
}

/// A request to a leased adapter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LeasedAdapterRequest {
    /// A pass without gradients.
    Forward(Vec<Datum>, Loss),
    /// A pass with gradients.
    ForwardBackward(Vec<Datum>, Loss),
    /// An optimizer step with these settings.
    OptimStep(AdamParams),
    /// An export of the adapter's current weights to sample from.
    Export,
}

/// Run → worker: the answer to a question.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The answer to [`Query::Wanted`].
    Wanted(Demand),
    /// The answer to [`Query::Logprobs`]: one logprob per target token.
    Logprobs(Result<Arc<[f32]>, RewardError>),
    /// The answer to [`Query::NextTokens`]: tokens with their logprobs.
    NextTokens(Result<Arc<[(Token, f32)]>, RewardError>),
    /// The answer to [`Query::LogprobDelta`].
    LogprobDelta(Result<LogprobDelta, RewardError>),
    /// The answer to [`Query::Sample`].
    Sampled(Result<SampleResponse, BackendError>),
    /// The answer to [`Query::TokenLogprobs`]: `None` for tokens without a logprob, such as the first.
    TokenLogprobs(Result<Vec<Option<f32>>, BackendError>),
    /// The answer to [`Query::LeaseAdapter`]. The run holds the lease.
    Leased(Result<(), RewardError>),
    /// The answer to [`LeasedAdapterRequest::Forward`] and [`LeasedAdapterRequest::ForwardBackward`].
    Passed(Result<ForwardOutput, BackendError>),
    /// The answer to [`LeasedAdapterRequest::OptimStep`].
    Stepped(Result<OptimStep, BackendError>),
    /// The answer to [`LeasedAdapterRequest::Export`]: the number of the export in the session, from 0.
    Exported(Result<usize, BackendError>),
    /// The run does not wait for the job, or a newer delivery has superseded this one.
    NotYours,
}

/// Whether a run waits for a job, and how often the job was returned to the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Whether the run waits for the result.
    pub is_wanted: bool,
    /// Number of deliveries that workers returned because they had to stop.
    pub handed_back: u64,
}

/// Run → workers, periodically: the environments of the run and how it delivers jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Announcement {
    /// Name of the run on the broker.
    pub run: String,
    /// Version of the program.
    pub program: String,
    /// Environments whose jobs the run publishes.
    pub environments: Vec<Offer>,
    /// Time without a progress report after which the broker redelivers a job.
    pub ack_wait: Duration,
    /// Number of deliveries after which an unfinished job becomes a dead letter.
    pub max_deliver: u64,
}

/// An environment as a run offers it to workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Name of the environment in the run.
    pub name: String,
    /// How to load the environment. Only the program's [`EnvironmentLoader`](super::EnvironmentLoader) reads this.
    pub spec: serde_json::Value,
    /// Identity of its code and data. A worker with another version does not serve the environment.
    pub version: String,
}

/// Worker → run, periodically: its load and the environments that it serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Name of the worker.
    pub worker: String,
    /// Random number of the worker's process.
    pub instance: u64,
    /// Version of the worker's program.
    pub program: String,
    /// Most jobs that the worker runs at a time, for all runs.
    pub concurrency: usize,
    /// Jobs of this run in progress.
    pub running: usize,
    /// Jobs of this run that the worker has finished.
    pub done: u64,
    /// Share of the worker's capacity that was idle since it started, from 0 to 1.
    pub idle: f64,
    /// Names of this run's environments that the worker serves.
    pub serves: Vec<String>,
    /// Names of the environments that the worker cannot serve, each with the reason.
    pub problems: Vec<(String, String)>,
    /// Whether this is its last report: the worker stops.
    pub leaves: bool,
}

/// Why bytes could not be decoded as a message.
#[derive(Debug, Error)]
pub enum MessageError {
    /// The version of the encoding is missing or not supported.
    #[error(
        "the message has version {found:?}, this program reads {VERSION}: run and workers must be of the same release"
    )]
    Version {
        /// First byte of the message; `None` if it is empty.
        found: Option<u8>,
    },
    /// The decompressed message is too large.
    #[error("the message has more than {LARGEST} bytes")]
    TooLarge,
    /// The message cannot be decompressed.
    #[error("the message is damaged: {0}")]
    Damaged(#[from] std::io::Error),
    /// The body does not have the expected type.
    #[error("the message cannot be read: {0}")]
    Unreadable(#[from] rmp_serde::decode::Error),
}

/// Encodes a message, compressed if it is large.
#[must_use]
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    let body = rmp_serde::to_vec(message).expect("the types of this file can be written to memory");
    let (flag, body) = match body.len() {
        COMPRESSED_FROM.. => (1, zstd::bulk::compress(&body, 1).expect("memory can be compressed")),
        _ => (0, body),
    };
    let mut bytes = Vec::with_capacity(body.len() + 2);
    bytes.extend([VERSION, flag]);
    bytes.extend(body);
    bytes
}

/// Decodes a message.
///
/// # Errors
/// The version is not supported, or the bytes are damaged, too large or of another type.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MessageError> {
    let [VERSION, flag, body @ ..] = bytes else {
        return Err(MessageError::Version { found: bytes.first().copied() });
    };
    if *flag == 0 {
        return Ok(rmp_serde::from_slice(body)?);
    }
    let size = zstd::bulk::Decompressor::upper_bound(body).filter(|size| *size <= LARGEST);
    let body = zstd::bulk::decompress(body, size.ok_or(MessageError::TooLarge)?)?;
    Ok(rmp_serde::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::ids::{GroupId, ItemKey};
    use minds_core::reward::Reward;
    use minds_core::sampling::SamplingParams;
    use serde_json::json;

    #[test]
    fn every_message_comes_back_as_it_was() {
        let id = RolloutId { group: GroupId(7), member: 2 };
        let rollout = Rollout::new(id, ItemKey { component: 0, item: 9 }, PolicyVersion(3));
        let info = json!({"nested": [1, 2.5, null, "ü"], "big": u64::MAX});
        let item = Item { index: 9, prompt: Vec::new(), answer: Some("x".repeat(5000)), info };
        let work = JobWork::Score { item: Cow::Borrowed(&item), rollout: Cow::Borrowed(&rollout) };
        let job = Job { environment: "e".into(), work };
        let bytes = encode(&job);
        assert!(bytes.len() < 1000, "a long text is compressed: {}", bytes.len());
        let JobWork::Score { item: same, rollout: as_well } = decode::<Job>(&bytes).unwrap().work else {
            panic!()
        };
        assert_eq!((&*same, &*as_well), (&item, &rollout));

        let scored = Outcome::Scored(Ok(Score {
            reward: Reward::new(f32::MIN_POSITIVE).unwrap(),
            metrics: [("odd".into(), f64::NAN), ("high".into(), f64::INFINITY)].into(),
        }));
        let result =
            JobResult { worker: "w".into(), delivery: 2, took: Duration::from_nanos(7), outcome: scored };
        let JobResult { outcome: Outcome::Scored(Ok(score)), took, .. } = decode(&encode(&result)).unwrap()
        else {
            panic!()
        };
        assert_eq!(score.reward.get().to_bits(), f32::MIN_POSITIVE.to_bits());
        assert!(score.metrics["odd"].is_nan() && score.metrics["high"].is_infinite());
        assert_eq!(took, Duration::from_nanos(7));

        for why in [RewardError::TimedOut(3), RewardError::Away("a".into()), RewardError::Budget(9)] {
            let answer: Answer = decode(&encode(&Answer::Logprobs(Err(why.clone())))).unwrap();
            assert!(matches!(answer, Answer::Logprobs(Err(same)) if same == why));
        }
        let request = SampleRequest::new([1, 2].into(), 3, SamplingParams::plain(4));
        let weights = SampledWeights::Frozen(FrozenWeights::Base);
        let query = Query::Sample(request.clone(), weights.clone());
        let Query::Sample(same, as_well) = decode(&encode(&query)).unwrap() else { panic!() };
        assert_eq!((same, as_well), (request, weights));
    }

    #[test]
    fn what_is_no_message_is_refused_by_what_is_wrong() {
        let told = |bytes: &[u8]| decode::<Job>(bytes).unwrap_err().to_string();
        assert!(told(&[]).contains("None"), "{}", told(&[]));
        assert!(told(&[9, 0]).contains("Some(9)"));
        assert!(told(&[VERSION, 0, 0xc1]).contains("cannot be read"));
        let mut cut = encode(&"x".repeat(9000));
        cut.truncate(20);
        assert!(told(&cut).contains("damaged") || told(&cut).contains("more than"), "{}", told(&cut));
        // A frame that claims a size above the limit: decoding must not allocate it.
        let huge = [0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0];
        assert!(told(&[&[VERSION, 1], &huge[..]].concat()).contains("more than"));
    }
}
