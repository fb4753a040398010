//! Runs on a server that denies the account requests: no credit, no permission, keys that run out.

use crate::command::{checkpoints, config, output, run, steps};
use crate::http_message::message;
use crate::remote::{KEY, Served};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// Requests that are denied after a number of passes.
#[derive(Clone)]
struct Denial {
    status: &'static str,
    /// Ends of the paths that are denied.
    paths: &'static [&'static str],
    after_passes: usize,
}

#[derive(Default)]
struct GateState {
    denial: Option<Denial>,
    passes: usize,
    denied: usize,
    /// Body of the request that opened the last session.
    session: String,
}

/// Forwards requests to a server, and denies some.
struct Gate {
    url: String,
    state: Arc<Mutex<GateState>>,
    _runtime: Runtime,
}

impl Gate {
    fn start(upstream: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::<Mutex<GateState>>::default();
        let upstream = upstream.trim_start_matches("http://").to_owned();
        let shared = state.clone();
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, state) = (upstream.clone(), shared.clone());
                // A connection ends when its client leaves.
                tokio::spawn(async move { drop(forward(client, &upstream, &state).await) });
            }
        });
        Self { url, state, _runtime: runtime }
    }

    fn deny(&self, denial: Option<Denial>) {
        *self.state.lock().unwrap() = GateState { denial, ..GateState::default() };
    }

    fn denied(&self) -> usize {
        self.state.lock().unwrap().denied
    }
}

async fn forward(mut client: TcpStream, upstream: &str, state: &Mutex<GateState>) -> io::Result<()> {
    let mut buffer = Vec::new();
    while let Some(request) = message(&mut client, &mut buffer).await? {
        let status = state.lock().unwrap().denied_status(&request);
        if let Some(status) = status {
            let body = r#"{"detail":"ask the accountant"}"#;
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            client.write_all(answer.as_bytes()).await?;
            continue;
        }
        let mut server = TcpStream::connect(upstream).await?;
        server.write_all(&request).await?;
        let Some(answer) = message(&mut server, &mut Vec::new()).await? else { return Ok(()) };
        client.write_all(&answer).await?;
    }
    Ok(())
}

impl GateState {
    /// The status of a denied request.
    fn denied_status(&mut self, request: &[u8]) -> Option<&'static str> {
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap();
        if path.ends_with("create_session") {
            self.session = text.split("\r\n\r\n").nth(1).unwrap().to_owned();
        }
        let denial = self.denial.as_ref();
        let denial =
            denial.filter(|d| self.passes >= d.after_passes && d.paths.iter().any(|end| path.ends_with(end)));
        if let Some(denial) = denial {
            self.denied += 1;
            return Some(denial.status);
        }
        self.passes += usize::from(path.ends_with("forward_backward"));
        None
    }
}

const STEPS: [u64; 6] = [1, 2, 3, 4, 5, 6];

fn train(gate: &Gate, folder: &Path) -> (Option<i32>, String, String) {
    let url = format!("tinker.base_url={}", gate.url);
    let extra = ["--max-steps", "6", "--set", &url, "--set", "metrics.addr=\"off\""];
    output(run(&config("ci_test.toml"), folder, &extra).env("TINKER_API_KEY", KEY))
}

#[test]
fn a_denied_account_ends_the_run_with_what_it_has_and_a_resume_completes_it() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("data"));
    let gate = Gate::start(&served.url);
    let paid = "402 Payment Required";
    let all = &["asample", "forward_backward", "optim_step", "save_weights_for_sampler", "save_weights"];
    for (n, (status, paths, saved, advice)) in [
        (paid, &["asample"][..], true, "add credit"),
        (paid, &["forward_backward"], true, "add credit"),
        (paid, &["optim_step"], true, "add credit"),
        (paid, all, false, "add credit"),
        ("403 Forbidden", &["asample"], true, "TINKER_PROJECT_ID"),
        ("401 Unauthorized", all, false, "TINKER_API_KEY"),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = dir.path().join(format!("run{n}"));
        gate.deny(Some(Denial { status, paths, after_passes: 3 }));
        let (code, stdout, stderr) = train(&gate, &folder);
        assert_eq!(code, Some(5), "{paths:?} {stdout}{stderr}");
        assert!(stderr.contains("ask the accountant") && stderr.contains(advice), "{stderr}");
        assert!(!format!("{stdout}{stderr}").contains(KEY));
        // Requests that were under way are answered so, too; none is sent again.
        assert!(gate.denied() <= 40, "{} were denied", gate.denied());
        let last = checkpoints(&folder).pop().unwrap();
        let done = steps(&folder).pop().unwrap();
        // Groups that were ready are trained where the service still does that.
        assert!((2..6).contains(&done), "{done} steps");
        match saved {
            true => assert_eq!(last["step"].as_u64(), Some(done), "{last}"),
            // Saved every two steps.
            false => assert_eq!(last["step"].as_u64(), Some(2), "{last}"),
        }
        assert_eq!(last["groups"]["failed"].as_u64(), Some(0), "{last}");

        gate.deny(None);
        let (code, stdout, stderr) = train(&gate, &folder);
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        assert_eq!(steps(&folder), STEPS);
        assert_eq!(checkpoints(&folder).pop().unwrap()["groups"]["failed"].as_u64(), Some(0));
    }
}

#[test]
fn the_key_of_a_command_and_the_project_reach_the_server_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("data"));
    let gate = Gate::start(&served.url);
    let url = format!("tinker.base_url={}", gate.url);
    let train = |folder: &str, command: &str| {
        let extra = ["--max-steps", "1", "--set", &url, "--set", "metrics.addr=\"off\""];
        let mut command_line = run(&config("ci_test.toml"), &dir.path().join(folder), &extra);
        command_line.env("TINKER_CREDENTIAL_CMD", command).env("TINKER_PROJECT_ID", "proj-of-this-test");
        output(command_line.env("MINDS_LOG", "debug"))
    };
    // The first key is wrong and is refused; the command runs again for another one.
    let count = dir.path().join("count");
    let count = count.display();
    let command =
        format!("echo x >> '{count}'; test $(wc -l < '{count}') = 1 && echo tml-stale || echo {KEY}");
    let (code, stdout, stderr) = train("fine", &command);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(gate.state.lock().unwrap().session.contains(r#""project_id":"proj-of-this-test""#));
    assert!(!format!("{stdout}{stderr}").contains(KEY));
    let folder = dir.path().join("fine");
    for file in std::fs::read_dir(&folder).unwrap().map(Result::unwrap).filter(|f| f.path().is_file()) {
        let bytes = std::fs::read(file.path()).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains(KEY) && !text.contains("wc -l"), "{:?} holds a secret", file.path());
    }

    let (code, _, stderr) = train("empty", "true");
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("TINKER_CREDENTIAL_CMD printed no key"), "{stderr}");
}
