//! Address of metrics and dashboard, and who may read them.

use super::error::KeyProblem;
use super::file::MetricsConfig;
use super::variables::ProcessVariables;
use minds_http::AccessToken;
use std::net::{Ipv4Addr, SocketAddr};

/// Default port of metrics and dashboard.
pub const PORT: u16 = 9464;

/// The value that turns the server off.
const OFF: &str = "off";

/// Minimum length of a token; shorter ones can be guessed.
const SHORTEST_TOKEN: usize = 16;

/// Resolved settings of the `[metrics]` table.
#[derive(Clone, Debug)]
pub struct MetricsPlan {
    /// Address that serves Prometheus and the dashboard; `None` if turned off.
    pub addr: Option<SocketAddr>,
    /// Whether the config sets the address; the default one is replaced if it is in use.
    pub is_written: bool,
    /// The token that clients on other machines must send.
    pub token: Option<AccessToken>,
}

impl MetricsPlan {
    /// Checks the `[metrics]` table and reads the token from its variable.
    pub(super) fn decide(file: &MetricsConfig, variables: &ProcessVariables) -> Result<Self, KeyProblem> {
        let token = file.token_env.as_deref().map(|name| token(name, variables)).transpose()?;
        let addr = match file.addr.as_deref() {
            None => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))),
            Some(OFF) => None,
            Some(written) => Some(written.parse::<SocketAddr>().map_err(|_| {
                let hint = format!("it must be an address such as 127.0.0.1:{PORT}, or \"{OFF}\"");
                KeyProblem::new("metrics.addr", format!("is \"{written}\", {hint}"))
            })?),
        };
        if let (Some(addr), None) = (addr, &token)
            && !addr.ip().is_loopback()
        {
            let problem = format!(
                "is {addr}, which other machines can reach: name the variable that holds a token in `metrics.token_env`"
            );
            return Err(KeyProblem::new("metrics.addr", problem));
        }
        Ok(Self { addr, is_written: file.addr.is_some(), token })
    }
}

/// The token that a variable holds.
fn token(variable: &str, variables: &ProcessVariables) -> Result<AccessToken, KeyProblem> {
    let given = variables.get(variable).unwrap_or_default();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    let problem = match AccessToken::new(&given) {
        None => format!("names {variable}, and that variable is not set"),
        Some(token) if given.len() >= SHORTEST_TOKEN && given.chars().all(is_allowed) => return Ok(token),
        Some(_) => format!(
            "names {variable}, which holds no token: write at least {SHORTEST_TOKEN} letters, digits or -._~, which an \
             address, a header and a cookie hold alike"
        ),
    };
    Err(KeyProblem::new("metrics.token_env", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(text: &str) -> Result<MetricsPlan, String> {
        let variables =
            [("DOOR", "sesame-of-this-test"), ("SHORT", "sesame"), ("ODD", "sesame;of;this;test")]
                .into_iter()
                .collect();
        MetricsPlan::decide(&toml::from_str(text).unwrap(), &variables)
            .map_err(|KeyProblem { key, problem }| format!("{key} {problem}"))
    }

    #[test]
    fn this_machine_is_the_usual_place_and_others_need_a_token() {
        let usual = decide("").unwrap();
        assert_eq!((usual.addr.unwrap().to_string().as_str(), usual.is_written), ("127.0.0.1:9464", false));
        assert_eq!(decide("addr = \"off\"").unwrap().addr, None);
        assert!(decide("addr = \"[::1]:0\"").unwrap().is_written);
        for (text, words) in [
            ("addr = \"0.0.0.0:1\"", "metrics.addr is 0.0.0.0:1, which other machines can reach"),
            ("addr = \"localhost\"", "it must be an address such as"),
            ("token_env = \"NO_SUCH\"", "metrics.token_env names NO_SUCH, and that variable is not set"),
            (
                "token_env = \"SHORT\"",
                "metrics.token_env names SHORT, which holds no token: write at least 16",
            ),
            ("token_env = \"ODD\"", "metrics.token_env names ODD, which holds no token"),
        ] {
            let problem = decide(text).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
        let open = decide("addr = \"0.0.0.0:1\"\ntoken_env = \"DOOR\"").unwrap();
        assert!(open.token.is_some() && !format!("{open:?}").contains("sesame"));
    }
}
