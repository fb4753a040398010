//! Exceptions of user code that say that a service could not answer: the one that the run trains on, or a service of
//! its own, a grader behind an HTTP API for example.
//!
//! The environment is not at fault then, and the group is resampled later if the service may answer later. Exceptions of
//! libraries are known by name here; an exception that user code makes of them is one of its own.

use super::message::PythonError;
use super::request::WorkerRequestError;
use minds_core::reward::RewardError;

/// No connection, or a broken one: errors of Python, httpx, requests, urllib3, aiohttp and the clients of OpenAI and
/// Anthropic.
const NO_CONNECTION: &[&str] = &[
    "APIConnectionError",
    "APITimeoutError",
    "ClientConnectionError",
    "ClientConnectorError",
    "ClientOSError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectionAbortedError",
    "ConnectionError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "ConnectionTimeoutError",
    "MaxRetryError",
    "NewConnectionError",
    "PoolTimeout",
    "ReadError",
    "ReadTimeout",
    "RemoteProtocolError",
    "ServerDisconnectedError",
    "ServerTimeoutError",
    "URLError",
];

/// The service reports that it is overloaded or has failed.
const NO_SERVICE: &[&str] =
    &["InternalServerError", "OverloadedError", "RateLimitError", "ServiceUnavailableError"];

/// A response of any status, which the message contains.
const ANY_STATUS: &[&str] = &["APIStatusError", "ClientResponseError", "HTTPError", "HTTPStatusError"];

/// Requests of one rollout that the run's service did not answer.
#[derive(Default)]
pub(super) struct ServiceFaults {
    /// Why the last request failed that did.
    failed: Option<String>,
    /// Why the service declined the last request that it did.
    declined: Option<RewardError>,
}

impl ServiceFaults {
    /// Records an error if the service explains it.
    pub(super) fn record(&mut self, error: &WorkerRequestError) {
        match error {
            WorkerRequestError::Failed(why) => self.failed = Some(why.clone()),
            WorkerRequestError::Declined(cause) => self.declined = Some(cause.clone()),
            WorkerRequestError::TooLong { .. } | WorkerRequestError::Invalid(_) => {}
        }
    }

    /// The reward error of a rollout whose code raised `error`. A request that the service declined explains it only if
    /// its message repeats the reason: programs also try what a service offers.
    pub(super) fn reward_error(&self, error: &PythonError) -> RewardError {
        if let Some(why) = &self.failed {
            let PythonError { r#type, message, .. } = error;
            return RewardError::Service(format!("{why}; the environment then raised {}: {message}", r#type));
        }
        let declined = self.declined.clone().filter(|cause| error.message.contains(&cause.to_string()));
        declined.unwrap_or_else(|| from_exception(error))
    }
}

fn from_exception(error: &PythonError) -> RewardError {
    let name = error.r#type.rsplit('.').next().unwrap_or_default();
    let unreachable = NO_CONNECTION.contains(&name)
        || NO_SERVICE.contains(&name)
        || (ANY_STATUS.contains(&name) && says_unavailable(&error.message));
    match unreachable {
        true => RewardError::Service(format!(
            "the environment could not reach a service of its own: {}",
            error.describe()
        )),
        false => RewardError::Environment(error.describe()),
    }
}

/// Whether the first status in the text means that the service is unavailable for now.
fn says_unavailable(message: &str) -> bool {
    let statuses = message.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.len() == 3);
    let status =
        statuses.filter_map(|word| word.parse::<u16>().ok()).find(|status| (400..600).contains(status));
    status.is_some_and(|status| status == 429 || status >= 500)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::service::BackendError;

    fn is_service(name: &str, message: &str) -> bool {
        ServiceFaults::default().reward_error(&raised(name, message)).is_unanswered()
    }

    fn raised(name: &str, message: &str) -> PythonError {
        PythonError { r#type: name.into(), message: message.into(), traceback: String::new() }
    }

    #[test]
    fn a_request_that_the_service_declined_explains_only_the_error_that_repeats_it() {
        for error in [BackendError::Unsupported("top-k".into()), BackendError::Rejected("too long".into())] {
            let cause = RewardError::from(error.clone());
            let mut faults = ServiceFaults::default();
            faults.record(&error.into());
            let repeated = raised("BadRequestError", &format!("Error code: 400 - {cause}"));
            assert_eq!(faults.reward_error(&repeated), cause);
            let other = faults.reward_error(&raised("KeyError", "'answer'"));
            assert!(matches!(other, RewardError::Environment(_)), "{other}");
            faults.record(&WorkerRequestError::Failed("away".into()));
            assert!(faults.reward_error(&repeated).is_unanswered());
        }
    }

    /// The messages are those of httpx 0.28, requests 2.32, urllib, aiohttp 3.12 and openai 1.109.
    #[test]
    fn an_environment_is_not_blamed_for_a_service_that_cannot_answer() {
        for (name, message) in [
            ("ConnectionRefusedError", "[Errno 111] Connection refused"),
            ("httpx.ConnectError", "All connection attempts failed"),
            ("openai.APIConnectionError", "Connection error."),
            ("InternalServerError", "Error code: 503 - {'detail': 'loading'}"),
            ("RateLimitError", "Error code: 429"),
            ("HTTPStatusError", "Server error '503 Service Unavailable' for url 'http://127.0.0.1:4001/'"),
            ("HTTPError", "503 Server Error: Service Unavailable for url: http://judge:8443/"),
            ("HTTPError", "HTTP Error 502: Bad Gateway"),
            ("ClientResponseError", "500, message='Internal Server Error', url='http://judge/'"),
        ] {
            assert!(is_service(name, message), "{name}: {message}");
        }
        for (name, message) in [
            ("ValueError", "503"),
            ("KeyError", "'answer'"),
            ("HTTPStatusError", "Client error '401 Unauthorized' for url 'http://judge:503/'"),
            ("HTTPError", "HTTP Error 404: Not Found"),
            ("TimeoutError", ""),
        ] {
            assert!(!is_service(name, message), "{name}: {message}");
        }
    }
}
