//! What a server does unlike others, known by the name that it gives itself.

use super::Client;
use super::transport::{HttpRequest, HttpResponse};
use reqwest::Method;
use serde::Deserialize;

/// How SkyRL introduces itself at its root, whatever computes behind it.
const SKYRL: &str = "Tinker API Mock";

#[derive(Deserialize)]
struct ServerRoot {
    name: String,
}

impl Client {
    /// Whether a sampler goes on drawing from the weights that it was made of while their model is trained on.
    ///
    /// SkyRL has one place for both: sampling from older weights puts them back into training, or draws from the newer
    /// ones under the older name. With such a server, nothing may be drawn from a sampler once an optimizer step was
    /// made after it. A server that does not introduce itself is taken to be a plain one.
    pub async fn keeps_samplers(&self) -> bool {
        let connection = self.0.connection.clone();
        let asked = connection.runtime.clone().spawn(async move {
            let call = HttpRequest::bare(Method::GET, "../../", connection.timeouts.request);
            connection.transport.send(&call).await
        });
        // The question has a default, so a failure decides nothing.
        !matches!(asked.await, Ok(Ok(reply)) if is_skyrl(&reply))
    }
}

fn is_skyrl(reply: &HttpResponse) -> bool {
    reply.status == 200 && serde_json::from_slice::<ServerRoot>(&reply.body).is_ok_and(|it| it.name == SKYRL)
}
