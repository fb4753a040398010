//! Sessions of clients, with their models and samplers.
//!
//! Every model and sampler that a client creates within a session has a number. Creating one with the same number again
//! returns the existing one. A session without heartbeats or requests ends after a timeout.

use crate::api_error::ApiError;
use crate::ids::{printable, unique_id};
use crate::options::ServerOptions;
use axum::http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// All open sessions, by their id.
#[derive(Debug)]
pub(crate) struct SessionTable {
    table: Mutex<HashMap<String, ServerSession>>,
    most: usize,
    idle: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct ServerSession {
    pub(crate) user_metadata: Option<Map<String, Value>>,
    pub(crate) display_name: Option<String>,
    /// Models by number: the id of each, and the id of the request that creates it.
    pub(crate) models: BTreeMap<u64, (String, String)>,
    /// Sampler ids by the number that the client gave each.
    pub(crate) samplers: BTreeMap<u64, String>,
    begun: Instant,
    seen: Instant,
}

impl SessionTable {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        Self { table: Mutex::default(), most: options.max_sessions, idle: options.session_idle }
    }

    /// Opens a session and returns its id; status 429 if there are too many.
    pub(crate) fn begin(
        &self,
        user_metadata: Option<Map<String, Value>>,
        display_name: Option<String>,
    ) -> Result<String, ApiError> {
        let mut table = self.table.lock();
        if table.len() >= self.most {
            return Err(ApiError::too_many_requests(format!("there are {} sessions already", self.most)));
        }
        let id = unique_id("sess");
        let now = Instant::now();
        let models = BTreeMap::new();
        let samplers = BTreeMap::new();
        let session = ServerSession { user_metadata, display_name, models, samplers, begun: now, seen: now };
        table.insert(id.clone(), session);
        Ok(id)
    }

    /// Resets the idle time of a session and calls `look` with it; status 404 if there is none.
    pub(crate) fn with<T>(
        &self,
        id: &str,
        look: impl FnOnce(&mut ServerSession) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        match self.table.lock().get_mut(id) {
            Some(session) => {
                session.seen = Instant::now();
                look(session)
            }
            None => Err(ApiError::new(
                StatusCode::NOT_FOUND,
                format!("there is no session `{}`: it has ended, or the server was restarted", printable(id)),
            )),
        }
    }

    /// Id of the session that created a model, whose idle time it resets; `None` if the session has ended.
    pub(crate) fn of_model(&self, model: &str) -> Option<String> {
        let mut table = self.table.lock();
        let owns = |session: &ServerSession| session.models.values().any(|(id, _)| id == model);
        let (id, session) = table.iter_mut().find(|(_, session)| owns(session))?;
        session.seen = Instant::now();
        Some(id.clone())
    }

    /// Resets the idle time of a session; does nothing if it has ended.
    pub(crate) fn touch(&self, id: &str) {
        if let Some(session) = self.table.lock().get_mut(id) {
            session.seen = Instant::now();
        }
    }

    /// Removes a session; returns whether it existed.
    pub(crate) fn end(&self, id: &str) -> bool {
        self.table.lock().remove(id).is_some()
    }

    /// Removes the sessions whose idle time is over and returns their ids.
    pub(crate) fn sweep(&self) -> Vec<String> {
        let now = Instant::now();
        let mut ended = Vec::new();
        self.table.lock().retain(|id, session| {
            let lives = now < session.seen + self.idle;
            if !lives {
                ended.push(id.clone());
            }
            lives
        });
        ended
    }

    /// Ids of all sessions, the newest first.
    pub(crate) fn list(&self) -> Vec<String> {
        let table = self.table.lock();
        let mut all: Vec<(&String, Instant)> = table.iter().map(|(id, s)| (id, s.begun)).collect();
        all.sort_by_key(|(_, begun)| std::cmp::Reverse(*begun));
        all.into_iter().map(|(id, _)| id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_session_lives_as_long_as_it_gives_signs_of_life() {
        let idle = Duration::from_secs(60);
        let sessions =
            SessionTable::new(&ServerOptions { session_idle: idle, ..ServerOptions::new(|| UNIX_EPOCH) });
        let [silent, lively] = [(); 2].map(|()| sessions.begin(None, None).unwrap());
        advance(idle / 2).await;
        sessions.touch(&lively);
        advance(idle / 2).await;
        assert_eq!(sessions.sweep(), [silent.as_str()]);
        assert_eq!(sessions.with(&silent, |_| Ok(())).unwrap_err().status, StatusCode::NOT_FOUND);
        advance(idle / 2).await;
        assert_eq!(sessions.sweep(), [lively]);
        assert_eq!(sessions.list(), [""; 0]);
    }
}
