//! Names on the broker: the stream, its subjects, the consumers and the bucket of a run.
//!
//! Everything of one installation begins with the name of its stream, so that permissions can be given by prefix.
//! Every name of a run has the run in it, so that the credentials of a worker can be limited to one run.

use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// Longest part of a name that is kept as it was written.
const LONGEST: usize = 48;

/// Names below one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamNames {
    stream: String,
}

impl StreamNames {
    /// Names below the stream of this name; `None` unless it has only letters, digits, `-` and `_`.
    #[must_use]
    pub fn new(stream: &str) -> Option<Self> {
        let fits = !stream.is_empty() && stream.len() <= LONGEST && stream.chars().all(is_plain);
        fits.then(|| Self { stream: stream.into() })
    }

    /// The stream of jobs, results and dead letters.
    #[must_use]
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// The subjects that the stream stores.
    #[must_use]
    pub fn stored(&self) -> Vec<String> {
        ["job", "result", "dead"].map(|kind| format!("{}.{kind}.>", self.stream)).into()
    }

    /// Subject of a job.
    #[must_use]
    pub fn job(&self, run: &str, environment: &str, job: &str) -> String {
        format!("{}.job.{run}.{}.{job}", self.stream, token(environment))
    }

    /// Subject of the result of a job.
    #[must_use]
    pub fn result(&self, run: &str, job: &str) -> String {
        format!("{}.result.{run}.{job}", self.stream)
    }

    /// Subject of a job that no worker finished.
    #[must_use]
    pub fn dead(&self, run: &str, environment: &str, job: &str) -> String {
        format!("{}.dead.{run}.{}.{job}", self.stream, token(environment))
    }

    /// All dead letters, or those of one run.
    #[must_use]
    pub fn dead_letters(&self, run: Option<&str>) -> String {
        match run {
            Some(run) => format!("{}.dead.{run}.>", self.stream),
            None => format!("{}.dead.>", self.stream),
        }
    }

    /// Subjects of all jobs of an environment.
    #[must_use]
    pub fn jobs(&self, run: &str, environment: &str) -> String {
        self.job(run, environment, "*")
    }

    /// Subjects of all jobs of a run.
    #[must_use]
    pub fn all_jobs(&self, run: &str) -> String {
        format!("{}.job.{run}.>", self.stream)
    }

    /// Subjects of all results of a run.
    #[must_use]
    pub fn results(&self, run: &str) -> String {
        self.result(run, "*")
    }

    /// The consumer from which workers pull jobs of an environment.
    #[must_use]
    pub fn job_consumer(&self, run: &str, environment: &str) -> String {
        format!("{run}_{}", token(environment))
    }

    /// The consumer from which a run takes its results. No environment has this name: `.` is in none of their tokens,
    /// and neither is the second `_` here, for no token begins with one.
    #[must_use]
    pub fn result_consumer(&self, run: &str) -> String {
        format!("{run}__results")
    }

    /// Where a run announces itself; without one, the subjects of all runs.
    #[must_use]
    pub fn announcements(&self, run: Option<&str>) -> String {
        format!("{}.run.{}", self.stream, run.unwrap_or("*"))
    }

    /// Where workers send their questions to a run.
    #[must_use]
    pub fn questions(&self, run: &str) -> String {
        format!("{}.ask.{run}", self.stream)
    }

    /// Where a run tells workers which jobs nobody needs any more.
    #[must_use]
    pub fn cancellations(&self, run: &str) -> String {
        format!("{}.cancel.{run}", self.stream)
    }

    /// Where workers report about a run that they serve.
    #[must_use]
    pub fn reports(&self, run: &str) -> String {
        format!("{}.worker.{run}", self.stream)
    }

    /// Where answers to a run and to the workers that serve it alone come.
    #[must_use]
    pub fn inbox(&self, run: &str) -> String {
        format!("_INBOX_{run}")
    }

    /// The object store of a run, for messages above the broker's payload limit.
    #[must_use]
    pub fn bucket(&self, run: &str) -> String {
        format!("{}_{run}", self.stream)
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// A name as one token of a subject: as written where the broker takes it, else what it takes of it, and a hash.
#[must_use]
pub fn token(name: &str) -> String {
    let begins_plainly = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if name.len() <= LONGEST && begins_plainly && name.chars().all(is_plain) {
        return name.into();
    }
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).take(LONGEST - 9).collect();
    format!("{plain}-{}", &hash(&[name.as_bytes()])[..8])
}

/// SHA-256 of parts, each with its length in front, as 64 hexadecimal digits.
#[must_use]
pub fn hash(parts: &[&[u8]]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_token_of_its_own() {
        assert_eq!(token("ghost_trace-2"), "ghost_trace-2");
        let odd = ["a.b", "a b", "ab", "a>b", "*", "", "_results", "ä", &"x".repeat(80), &"x".repeat(81)];
        let tokens: Vec<String> = odd.iter().map(|name| token(name)).collect();
        for (n, token) in tokens.iter().enumerate() {
            assert!(!token.is_empty() && token.len() <= LONGEST && token.chars().all(is_plain), "{token}");
            assert!(!token.starts_with('_'), "{token}");
            assert!(!tokens[..n].contains(token), "{token}");
        }
    }

    #[test]
    fn a_stream_has_a_plain_name() {
        assert!(StreamNames::new("minds-2_a").is_some());
        assert_eq!(["", "a.b", "a b", "ü"].map(StreamNames::new), [const { None }; 4]);
    }
}
