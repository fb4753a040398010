//! Names on the broker: the stream, its subjects, the consumers and the bucket of a run.
//!
//! All names of one installation begin with the name of its stream, so that permissions can be granted by prefix. All
//! names of a run contain the name of the run, so that the credentials of a worker can be limited to one run.

use sha2::{Digest as _, Sha256};

/// Length up to which a name is used unchanged, in bytes.
const LONGEST: usize = 48;

/// Names of one stream, its subjects, its consumers and its buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamNames {
    stream: String,
}

impl StreamNames {
    /// Names for the stream `stream`. `None` unless it has 1 to 48 ASCII letters, digits, `-` and `_`.
    #[must_use]
    pub fn new(stream: &str) -> Option<Self> {
        let fits = !stream.is_empty() && stream.len() <= LONGEST && stream.chars().all(is_plain);
        fits.then(|| Self { stream: stream.into() })
    }

    /// Name of the stream of jobs, results and dead letters.
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

    /// Subject of a dead letter.
    #[must_use]
    pub fn dead(&self, run: &str, environment: &str, job: &str) -> String {
        format!("{}.dead.{run}.{}.{job}", self.stream, token(environment))
    }

    /// Subjects of the dead letters of one run, or of all runs.
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

    /// Name of the consumer from which workers pull the jobs of an environment.
    #[must_use]
    pub fn job_consumer(&self, run: &str, environment: &str) -> String {
        format!("{run}_{}", token(environment))
    }

    /// Name of the consumer from which a run receives its results.
    ///
    /// It differs from the names of all job consumers, because no token of an environment begins with `_`.
    #[must_use]
    pub fn result_consumer(&self, run: &str) -> String {
        format!("{run}__results")
    }

    /// Subject of a run's announcements; without a run, the subjects of all runs.
    #[must_use]
    pub fn announcements(&self, run: Option<&str>) -> String {
        format!("{}.run.{}", self.stream, run.unwrap_or("*"))
    }

    /// Subject of the questions of workers to a run.
    #[must_use]
    pub fn questions(&self, run: &str) -> String {
        format!("{}.ask.{run}", self.stream)
    }

    /// Subject on which a run publishes the ids of canceled jobs.
    #[must_use]
    pub fn cancellations(&self, run: &str) -> String {
        format!("{}.cancel.{run}", self.stream)
    }

    /// Subject of the reports of workers to a run.
    #[must_use]
    pub fn reports(&self, run: &str) -> String {
        format!("{}.worker.{run}", self.stream)
    }

    /// Prefix of the reply subjects of a run and of the workers that serve only this run.
    #[must_use]
    pub fn inbox(&self, run: &str) -> String {
        format!("_INBOX.{run}")
    }

    /// Name of a run's object store, which holds messages above the broker's payload limit.
    #[must_use]
    pub fn bucket(&self, run: &str) -> String {
        format!("{}_{run}", self.stream)
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// Converts a name to one token of a subject. A name that is not valid as a token is replaced by its letters and digits
/// and a hash.
#[must_use]
pub fn token(name: &str) -> String {
    let begins_plainly = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if name.len() <= LONGEST && begins_plainly && name.chars().all(is_plain) {
        return name.into();
    }
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).take(LONGEST - 9).collect();
    format!("{plain}-{}", &hash(&[name.as_bytes()])[..8])
}

/// SHA-256 of the parts, each prefixed with its length, as 64 hexadecimal digits.
#[must_use]
pub fn hash(parts: &[&[u8]]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
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
