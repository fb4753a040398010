//! Reads messages of HTTP/1.1, for proxies in tests. Shared with the tests of the program.

use std::io;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// Reads one message of HTTP/1.1 with a length; what was read beyond it stays in the buffer.
pub async fn message(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let total = end + 4 + length.map_or(0, |length| length.trim().parse::<usize>().unwrap());
            if buffer.len() >= total {
                return Ok(Some(buffer.drain(..total).collect()));
            }
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}
