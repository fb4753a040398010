//! A hub of the tests' own: the few answers that a model's download takes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub const COMMIT: &str = "0123456789012345678901234567890123456789";

/// Serves one model until the test ends.
pub struct Hub {
    pub endpoint: String,
    pub requests: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    pub fn serve(name: &'static str, files: BTreeMap<String, Vec<u8>>) -> Self {
        Self::serve_but("(nothing)", name, files)
    }

    /// Fails for every path with `broken` in it.
    pub fn serve_but(broken: &'static str, name: &'static str, files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (files, seen) = (Arc::new(files), requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (files, seen) = (files.clone(), seen.clone());
                std::thread::spawn(move || answer(stream, broken, name, &files, &seen));
            }
        });
        Self { endpoint, requests }
    }

    pub fn count(&self, what: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|line| line.contains(what)).count()
    }
}

fn answer(
    stream: TcpStream,
    broken: &str,
    name: &str,
    files: &BTreeMap<String, Vec<u8>>,
    seen: &Mutex<Vec<String>>,
) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut stream = stream;
    while let Some(Ok(request)) = lines.next() {
        while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        seen.lock().unwrap().push(request.clone());
        let path = request.split(' ').nth(1).unwrap();
        let (status, tag, body) = match path.contains(broken) {
            true => ("403 Forbidden", "none".into(), b"{}".to_vec()),
            false => respond(path, name, files),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"{tag}\"\r\nX-Repo-Commit: {COMMIT}\r\n\
             Content-Type: application/json\r\n\r\n",
            body.len()
        );
        let body = if request.starts_with("HEAD") { &[][..] } else { &body };
        if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).is_err() {
            return;
        }
    }
}

fn respond(path: &str, name: &str, files: &BTreeMap<String, Vec<u8>>) -> (&'static str, String, Vec<u8>) {
    let path = path.split('?').next().unwrap();
    if let Some(rest) = path.strip_prefix(&format!("/{name}/resolve/")) {
        let file = rest.split_once('/').map(|(_, file)| file);
        return match file.and_then(|file| files.get_key_value(file)) {
            Some((file, content)) => ("200 OK", file.replace(['.', '/'], "-"), content.clone()),
            None => ("404 Not Found", "none".into(), b"{}".to_vec()),
        };
    }
    let tree = || {
        let entry = |(path, content): (&String, &Vec<u8>)| serde_json::json!({ "type": "file", "oid": "0", "size": content.len(), "path": path });
        serde_json::Value::Array(files.iter().map(entry).collect())
    };
    let body = match path.strip_prefix(&format!("/api/models/{name}")) {
        Some(rest) if rest.starts_with("/tree/") => tree(),
        Some(_) => serde_json::json!({ "id": name, "sha": COMMIT }),
        None => return ("404 Not Found", "none".into(), br#"{"error":"Repository not found"}"#.to_vec()),
    };
    ("200 OK", "api".into(), body.to_string().into_bytes())
}
