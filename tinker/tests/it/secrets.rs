//! Keys go where they belong and nowhere else.

use crate::kit::server::{Kind, Scripted, Server};
use crate::kit::{MODEL, limits, options};
use minds_core::service::{BackendError, DenialReason};
use minds_tinker::client::{Client, ClientError, ClientOptions, Secret};
use minds_tinker::types::ClientConfig;

const KEY: &str = "tml-open-sesame";

fn with_key(url: &str) -> ClientOptions {
    ClientOptions { api_key: Some(Secret::new(KEY)), ..options(url) }
}

fn keys(server: &Server) -> Vec<String> {
    let seen = server.seen.lock().unwrap();
    let key =
        |headers: &axum::http::HeaderMap| headers.get("x-api-key").map(|k| k.to_str().unwrap().to_owned());
    seen.iter().map(|seen| key(&seen.headers).unwrap_or_default()).collect()
}

#[tokio::test]
async fn a_key_that_the_server_quotes_is_in_no_error() {
    let server = Server::start(Kind::default()).await;
    let options = with_key(&server.url);
    assert!(!format!("{options:?}").contains(KEY));
    let client = Client::connect(&options).await.unwrap();
    assert!(keys(&server).iter().all(|key| key == KEY));
    for status in [401, 422] {
        server.script("create_sampling_session", status, &format!(r#"{{"detail":"the key {KEY} is bad"}}"#));
        let error = client.base_sampler(MODEL, limits()).await.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("the key *** is bad"), "{error}");
        assert!(!format!("{error:?}").contains(KEY));
    }
}

/// Redirects are followed within a server; another one gets nothing.
#[tokio::test]
async fn a_redirect_does_not_carry_the_key_away() {
    let (server, thief) = (Server::start(Kind::default()).await, Server::start(Kind::default()).await);
    let client = Client::connect(&with_key(&server.url)).await.unwrap();
    let redirect = |to: String| Scripted {
        path: "get_server_capabilities",
        status: 307,
        headers: vec![("location", to)],
        body: vec![],
    };
    let away = redirect(format!("{}/api/v1/get_server_capabilities", thief.url));
    server.script.lock().unwrap().push_back(away);
    assert!(client.capabilities().await.is_err());
    assert!(thief.seen.lock().unwrap().is_empty());
    server.script.lock().unwrap().push_back(redirect("/api/v1/get_server_capabilities".into()));
    assert_eq!(client.capabilities().await.unwrap().supported_models.len(), 1);
}

#[tokio::test]
async fn a_key_is_exchanged_for_a_token_and_the_token_renewed() {
    let config = ClientConfig { pjwt_auth_enabled: true, ..ClientConfig::default() };
    let server = Server::start(Kind { config: Some(config), ..Kind::default() }).await;
    // {"iat": 1000, "exp": 4600}
    for n in 1..=2 {
        server.script(
            "auth/token",
            200,
            &format!(r#"{{"jwt":"e30.eyJpYXQiOiAxMDAwLCAiZXhwIjogNDYwMH0.{n}"}}"#),
        );
    }
    let client = Client::connect(&with_key(&server.url)).await.unwrap();
    let expired = Scripted {
        path: "get_server_capabilities",
        status: 401,
        headers: vec![("www-authenticate", r#"Bearer error="invalid_token""#.into())],
        body: b"{}".to_vec(),
    };
    server.script.lock().unwrap().push_back(expired);
    client.capabilities().await.unwrap();
    let first_letters: Vec<String> =
        keys(&server).iter().map(|key| key.chars().rev().take(1).collect()).collect();
    // config and exchange with the key; dynamic_config, session and the question with the first token; then again.
    assert_eq!(first_letters, ["e", "e", "1", "1", "1", "e", "2"]);
}

#[tokio::test]
async fn without_a_key_nothing_is_sent_and_the_error_names_the_command() {
    let server = Server::start(Kind::default()).await;
    let command = Some(Secret::new("echo tml-secret; exit 4"));
    let given = ClientOptions { credential_command: command, ..options(&server.url) };
    let error = Client::connect(&given).await.map(|_| ()).unwrap_err();
    assert_eq!(error.denial(), Some(DenialReason::NoKey));
    assert_eq!(
        BackendError::from(error).to_string(),
        "there is no key for the service: the client configuration was not sent: TINKER_CREDENTIAL_CMD failed (exit \
         status: 4): run it by hand to see why"
    );
    assert_eq!(server.seen.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn a_key_that_is_refused_is_not_tried_again() {
    let server = Server::start(Kind::default()).await;
    server.script("client/config", 401, r#"{"detail":"who are you"}"#);
    let error = Client::connect(&with_key(&server.url)).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, ClientError::Denied { status: 401, .. }), "{error:?}");
    assert_eq!(server.seen.lock().unwrap().len(), 1);
}
