//! What a run and its workers send each other, and its form in bytes.
//!
//! A message is MessagePack behind a byte with the version of this form and one that says whether the rest is
//! compressed. A version that is not known is refused: a run and its workers are of one release.

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

/// Version of the form.
const VERSION: u8 = 1;
/// Messages from this size are compressed, in bytes.
const COMPRESSED_FROM: usize = 2048;
/// Largest message once it is decompressed, in bytes.
const LARGEST: usize = 256 << 20;

/// One piece of work for a worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job<'a> {
    /// Name of the environment.
    pub environment: Cow<'a, str>,
    /// What is to be done.
    pub work: Work<'a>,
}

/// The kinds of work.
#[derive(Debug, Serialize, Deserialize)]
pub enum Work<'a> {
    /// Compute the reward of a rollout.
    Score {
        /// The item that was sampled.
        item: Cow<'a, Item>,
        /// The rollout.
        rollout: Cow<'a, Rollout>,
    },
    /// Run a self-driven environment.
    Generate {
        /// The item to sample.
        item: Cow<'a, Item>,
        /// The rollouts to generate, of one group.
        sessions: Vec<SessionStamp>,
    },
}

/// One rollout that is to be generated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionStamp {
    /// Its id.
    pub rollout: RolloutId,
    /// How often it was sampled before, without a result.
    pub attempt: u32,
    /// The weights that sample it.
    pub policy: PolicyVersion,
}

/// What came out of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobResult {
    /// The worker that did it.
    pub worker: String,
    /// How often the broker had handed out the job, this time included.
    pub delivery: u64,
    /// How long it took.
    pub took: Duration,
    /// The result.
    pub outcome: Outcome,
}

/// A result by kind of work.
#[derive(Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The reward, or why there is none.
    Scored(Result<Score, RewardError>),
    /// The rollouts in the order of the job's sessions.
    Generated(Vec<Result<SessionRollout, SessionError>>),
    /// No worker finished the job; the cause.
    Dead(String),
}

/// Worker → run: a question about a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// Id of the job.
    pub job: String,
    /// Which delivery of the job asks.
    pub delivery: u64,
    /// Number of the question within this delivery. One that is sent again keeps it.
    pub number: u64,
    /// Index among the sessions of the job; 0 for the only rollout of another one.
    pub session: usize,
    /// What is asked.
    pub query: Query,
}

/// What a worker asks.
#[derive(Debug, Serialize, Deserialize)]
pub enum Query {
    /// Whether the run waits for the result. Also announces that a worker has begun.
    Wanted {
        /// The worker that asks.
        worker: String,
    },
    /// Logprobs of a target after a prefix.
    Logprobs(Arc<[Token]>, Arc<[Token]>),
    /// The most likely tokens after a prefix, and how many.
    NextTokens(Arc<[Token]>, usize),
    /// What a gradient step on a text would do to a target after a prefix.
    LogprobDelta(Datum, Arc<[Token]>, Arc<[Token]>),
    /// Samples of these weights.
    Sample(SampleRequest, SampledWeights),
    /// Logprob of each token under these weights.
    TokenLogprobs(Arc<[Token]>, SampledWeights),
    /// An adapter for the session, until the job ends.
    LeaseAdapter,
    /// Something for the adapter of the session. Not to be done twice.
    Train(AdapterRequest),
}

/// The weights that a question is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SampledWeights {
    /// Those of the rollout.
    Policy,
    /// Weights that training never changes.
    Frozen(FrozenWeights),
    /// An export of the session's adapter, by its number.
    Exported(usize),
}

/// A request to a leased adapter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AdapterRequest {
    /// Losses without gradients.
    Forward(Vec<Datum>, Loss),
    /// Losses with gradients.
    ForwardBackward(Vec<Datum>, Loss),
    /// An optimizer step.
    OptimStep(AdamParams),
    /// A sampler of its weights.
    Export,
}

/// Run → worker: the answer to a question.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Whether the result is awaited.
    Wanted(bool),
    /// To [`Query::Logprobs`].
    Logprobs(Result<Arc<[f32]>, RewardError>),
    /// To [`Query::NextTokens`].
    NextTokens(Result<Arc<[(Token, f32)]>, RewardError>),
    /// To [`Query::LogprobDelta`].
    LogprobDelta(Result<LogprobDelta, RewardError>),
    /// To [`Query::Sample`].
    Sampled(Result<SampleResponse, BackendError>),
    /// To [`Query::TokenLogprobs`].
    TokenLogprobs(Result<Vec<Option<f32>>, BackendError>),
    /// To [`Query::LeaseAdapter`].
    Leased(Result<(), RewardError>),
    /// To both kinds of pass.
    Passed(Result<ForwardOutput, BackendError>),
    /// To [`AdapterRequest::OptimStep`].
    Stepped(Result<OptimStep, BackendError>),
    /// To [`AdapterRequest::Export`]: the number of the export.
    Exported(Result<usize, BackendError>),
    /// The run does not wait for this job, or another delivery of it has taken over.
    NotYours,
}

/// Run → workers, repeatedly: what there is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Announcement {
    /// Name of the run on the broker.
    pub run: String,
    /// Version of the program.
    pub program: String,
    /// Environments whose jobs it hands out.
    pub environments: Vec<Offer>,
    /// Time without a sign of life after which the broker hands out a job again.
    pub ack_wait: Duration,
    /// How often a job is handed out before it is a dead letter.
    pub max_deliver: u64,
}

/// An environment as a run offers it to workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Its name in the run.
    pub name: String,
    /// How to load it. Only the program that made it reads it.
    pub spec: serde_json::Value,
    /// Identity of its code and data; a worker whose own differs leaves it alone.
    pub version: String,
}

/// Worker → run, repeatedly: what it does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Name of the worker.
    pub worker: String,
    /// Version of its program.
    pub program: String,
    /// Jobs that it runs at a time.
    pub concurrency: usize,
    /// Jobs of this run in progress.
    pub running: usize,
    /// Jobs of this run that it has finished.
    pub done: u64,
    /// Share of its capacity that was idle since it started, from 0 to 1.
    pub idle: f64,
    /// Names of the environments that it serves.
    pub serves: Vec<String>,
    /// Environments that it cannot serve, with the reason.
    pub problems: Vec<(String, String)>,
}

/// Bytes that are no message.
#[derive(Debug, Error)]
pub enum MessageError {
    /// Another version of the form, or none.
    #[error(
        "the message has the form {found:?}, this program reads {VERSION}: run and workers must be of one release"
    )]
    Version {
        /// First byte of the message.
        found: Option<u8>,
    },
    /// It is too large.
    #[error("the message has more than {LARGEST} bytes")]
    TooLarge,
    /// It cannot be decompressed.
    #[error("the message is damaged: {0}")]
    Damaged(#[from] std::io::Error),
    /// It does not hold what is expected.
    #[error("the message cannot be read: {0}")]
    Unreadable(#[from] rmp_serde::decode::Error),
}

/// A message as bytes.
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

/// The message of these bytes.
///
/// # Errors
/// See [`MessageError`].
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
        let work = Work::Score { item: Cow::Borrowed(&item), rollout: Cow::Borrowed(&rollout) };
        let job = Job { environment: "e".into(), work };
        let bytes = encode(&job);
        assert!(bytes.len() < 1000, "a long text is compressed: {}", bytes.len());
        let Work::Score { item: same, rollout: as_well } = decode::<Job>(&bytes).unwrap().work else {
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
        // A frame that claims to be larger than anything that is sent: nothing is allocated for it.
        let huge = [0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0];
        assert!(told(&[&[VERSION, 1], &huge[..]].concat()).contains("more than"));
    }
}
