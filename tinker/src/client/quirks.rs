//! Deviations of known servers, identified by the name that they report.

use super::Client;
use super::transport::{HttpRequest, HttpResponse};
use reqwest::Method;
use serde::Deserialize;

/// Name that SkyRL reports at its root, for all of its backends.
const SKYRL: &str = "Tinker API Mock";

#[derive(Deserialize)]
struct ServerRoot {
    name: String,
}

impl Client {
    /// Whether a sampler keeps its weights while their model is trained further.
    ///
    /// SkyRL shares one copy for both: sampling from older weights puts them back into training, or draws from the
    /// newer ones under the older name. With such a server, do not use a sampler after a later optimizer step. A server
    /// that does not report a name is assumed to keep samplers.
    pub async fn keeps_samplers(&self) -> bool {
        let connection = self.0.connection.clone();
        let asked = connection.runtime.clone().spawn(async move {
            let call = HttpRequest::bare(Method::GET, "../../", connection.timeouts.request);
            connection.transport.send(&call).await
        });
        // The query has a default, so a failure is harmless.
        !matches!(asked.await, Ok(Ok(reply)) if is_skyrl(&reply))
    }
}

fn is_skyrl(reply: &HttpResponse) -> bool {
    reply.status == 200 && serde_json::from_slice::<ServerRoot>(&reply.body).is_ok_and(|it| it.name == SKYRL)
}
