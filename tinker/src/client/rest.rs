//! What is kept on the server.

use super::connection::encode;
use super::error::ClientError;
use super::transport::HttpRequest;
use super::{Client, checks};
use crate::types::{
    CheckpointList, FinishReason, FinishSessionRequest, SetTtlRequest, UnloadModel, WireCheckpoint,
};
use reqwest::Method;
use std::time::Duration;

/// Entries per page of a list.
const PAGE: usize = 100;

impl Client {
    /// Everything that was saved, or only what one model saved.
    ///
    /// # Errors
    /// The model is not known, or the server does not answer.
    pub async fn checkpoints(&self, model_id: Option<&str>) -> Result<Vec<WireCheckpoint>, ClientError> {
        let what = "the list of saved weights";
        if let Some(model) = model_id {
            let path = format!("training_runs/{model}/checkpoints");
            let list: CheckpointList = self.run(|c| async move { c.get(what, &path).await }).await?;
            return Ok(list.checkpoints);
        }
        let mut all = Vec::new();
        loop {
            let path = format!("checkpoints?limit={PAGE}&offset={}", all.len());
            let page: CheckpointList = self.run(|c| async move { c.get(what, &path).await }).await?;
            let came = page.checkpoints.len();
            let total = page.cursor.map(|cursor| cursor.total_count);
            all.extend(page.checkpoints);
            if came == 0 || total.map_or(came < PAGE, |total| all.len() >= total) {
                return Ok(all);
            }
        }
    }

    /// Deletes saved weights.
    ///
    /// # Errors
    /// They are not there, or the server does not answer.
    pub async fn delete_checkpoint(&self, path: &str) -> Result<(), ClientError> {
        let what = "the deletion of saved weights";
        let place = checkpoint_route(what, path)?;
        self.run(|c| async move {
            let call = HttpRequest::bare(Method::DELETE, place, c.timeouts.request);
            c.request_empty(what, call).await
        })
        .await
    }

    /// Sets how long saved weights are kept from now on; `None` for ever.
    ///
    /// # Errors
    /// They are not there, or the server does not answer.
    pub async fn set_ttl(&self, path: &str, ttl: Option<Duration>) -> Result<(), ClientError> {
        let what = "the time to keep saved weights";
        let place = checkpoint_route(what, path)?;
        let body = encode(&SetTtlRequest { ttl_seconds: ttl.map(|ttl| ttl.as_secs()) });
        self.run(|c| async move {
            let call = HttpRequest::post(format!("{place}/ttl"), body, c.timeouts.request);
            c.request_empty(what, HttpRequest { method: Method::PUT, ..call }).await
        })
        .await
    }

    /// Ends the session. On servers that do not know this, its models are released one by one, so that their places are
    /// free at once and not only when the session has run out.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn finish(self, reason: FinishReason) -> Result<(), ClientError> {
        let path = format!("sessions/{}/finish", self.session_id());
        let body = encode(&FinishSessionRequest { reason, detail: None });
        let models = self.0.created_models();
        let ended = self
            .run(|c| async move {
                let call = HttpRequest::post(path, body, c.timeouts.request);
                let ended = c.request_empty("the end of the session", call).await;
                if matches!(ended, Err(ClientError::Unsupported { .. })) {
                    for model_id in models {
                        let body = encode(&UnloadModel { model_id, ..UnloadModel::default() });
                        let call = HttpRequest::post("unload_model", body, c.timeouts.request);
                        // One that is gone, or that the server keeps, changes nothing about the end.
                        if let Err(error) = c.request_empty("unload_model", call).await {
                            tracing::debug!(%error, "failed to release a model");
                        }
                    }
                }
                ended
            })
            .await;
        match ended {
            Err(
                ClientError::Unsupported { .. }
                | ClientError::Rejected { .. }
                | ClientError::InDoubt { .. }
                | ClientError::Lost { .. },
            ) => Ok(()),
            other => other,
        }
    }
}

fn checkpoint_route(what: &str, path: &str) -> Result<String, ClientError> {
    let path = checks::check_path(what, path)?;
    Ok(format!("training_runs/{}/checkpoints/{}", path.run, path.checkpoint_id()))
}
