//! The run's answers to the questions about one job.

use super::state::Asked;
use crate::remote::message::{Answer, Query, Question};
use async_nats::Subject;
use async_trait::async_trait;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Identity of a question about a job. A repeated question has the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct QuestionKey {
    /// The job's generation: see [`WaitingJob`](super::state::WaitingJob).
    generation: u64,
    /// Number of the delivery that asked.
    pub(super) delivery: u64,
    /// Number of the question within the delivery.
    pub(super) number: u64,
}

impl QuestionKey {
    pub(super) fn of(question: &Question, generation: u64) -> Self {
        Self { generation, delivery: question.delivery, number: question.number }
    }
}

/// Answers the questions of workers about one job.
#[async_trait]
pub trait Answerer: Sync {
    /// Answers a question about the session with this index.
    async fn answer(&self, session: usize, query: Query) -> Answer;
}

/// The questions about a job, those that are being answered and those whose answer must stay the same.
///
/// A worker repeats a question until an answer arrives, and each question is answered once.
pub(super) struct PendingAnswers<'a> {
    answerer: &'a dyn Answerer,
    /// Subjects for the answers to questions that are being answered.
    replies: HashMap<QuestionKey, Vec<Subject>>,
    running: FuturesUnordered<BoxFuture<'a, (QuestionKey, bool, Answer)>>,
    /// Answers to training requests, which must not be executed twice.
    trained: HashMap<QuestionKey, Answer>,
}

impl<'a> PendingAnswers<'a> {
    pub(super) fn new(answerer: &'a dyn Answerer) -> Self {
        Self { answerer, replies: HashMap::new(), running: FuturesUnordered::new(), trained: HashMap::new() }
    }

    /// Starts to answer a question. If its answer is stored, returns it with the subject to send it to.
    pub(super) fn ask(&mut self, asked: Asked) -> Option<(QuestionKey, Subject, Answer)> {
        let Asked { generation, question, reply } = asked;
        let key = QuestionKey::of(&question, generation);
        if let Some(answer) = self.trained.get(&key) {
            return Some((key, reply, answer.clone()));
        }
        match self.replies.entry(key) {
            Entry::Occupied(mut waiting) => waiting.get_mut().push(reply),
            Entry::Vacant(free) => {
                free.insert(vec![reply]);
                let answerer = self.answerer;
                let trains = matches!(question.query, Query::Train(_));
                self.running.push(Box::pin(async move {
                    (key, trains, answerer.answer(question.session, question.query).await)
                }));
            }
        }
        None
    }

    /// Waits for an answer, and returns it with the subjects to send it to. `None` if no question is being answered.
    pub(super) async fn next(&mut self) -> Option<(QuestionKey, Vec<Subject>, Answer)> {
        let (key, trains, answer) = self.running.next().await?;
        if trains {
            self.trained.insert(key, answer.clone());
        }
        Some((key, self.replies.remove(&key).unwrap_or_default(), answer))
    }
}
