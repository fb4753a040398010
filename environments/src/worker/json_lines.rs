//! Messages between a run and a Python worker: one line of JSON each.
//!
//! A line that is too long or is not a message is an error with its size or its place, never a guess. Malformed
//! bytes are found at the end of their line: heartbeats are lines too, so that is within seconds.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// Maximum size of a message, in bytes.
const LIMIT: usize = 256 << 20;

/// What a worker writes before its first message. Earlier output comes from the interpreter's start.
const OPENING: &[u8] = b"\0minds-host\n";

/// Most bytes that an interpreter's start may print.
const CHATTER: usize = 1 << 20;

/// A line that grows by this number of bytes is a sign of life. Fewer may come from anything that found the pipe.
const STEP: usize = 1 << 16;

/// A stream that cannot be read any further.
#[derive(Debug, Error)]
pub(super) enum JsonLineError {
    #[error("it sent a message of more than {LIMIT} bytes")]
    TooLong,
    #[error("it sent a line that is not a message: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("it sent {CHATTER} bytes and no message: is the interpreter a Python?")]
    NoOpening,
    #[error("it cannot be read from: {0}")]
    Io(#[from] std::io::Error),
}

/// Reads up to where the messages begin; false if the stream ends before.
pub(super) async fn open<R: AsyncBufRead + Unpin>(stream: &mut R) -> Result<bool, JsonLineError> {
    let mut seen = 0;
    for _ in 0..CHATTER {
        let byte = match stream.read_u8().await {
            Ok(byte) => byte,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // The opening's first byte occurs in it only once, so a mismatch starts over at most there.
        seen = if byte == OPENING[seen] { seen + 1 } else { usize::from(byte == OPENING[0]) };
        if seen == OPENING.len() {
            return Ok(true);
        }
    }
    Err(JsonLineError::NoOpening)
}

/// The next message; `None` if the stream ends, even within a line: its writer has died. Calls `alive` whenever a line
/// ends or has grown by [`STEP`] bytes.
pub(super) async fn read<R, M>(stream: &mut R, alive: impl Fn()) -> Result<Option<M>, JsonLineError>
where
    R: AsyncBufRead + Unpin,
    M: DeserializeOwned,
{
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut part = (&mut *stream).take(STEP as u64);
        let read = part.read_until(b'\n', &mut line).await?;
        if read < STEP && line.last() != Some(&b'\n') {
            return Ok(None);
        }
        if line.len() > LIMIT {
            return Err(JsonLineError::TooLong);
        }
        alive();
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

/// A message as a line; `None` if it is too long.
pub(super) fn encode<M: Serialize>(message: &M) -> Option<Vec<u8>> {
    let mut line =
        serde_json::to_vec(message).expect("maps of text, numbers and lists can be written to memory");
    line.push(b'\n');
    (line.len() <= LIMIT).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::cell::Cell;
    use std::time::Duration;
    use tokio::io::{AsyncWriteExt as _, BufReader};

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    fn read_all(mut bytes: &[u8]) -> Result<Vec<Value>, JsonLineError> {
        block_on(async {
            let mut found = Vec::new();
            while let Some(value) = read(&mut bytes, || ()).await? {
                found.push(value);
            }
            Ok(found)
        })
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e300..1e300).prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_a_cut_stream_gives_only_whole_messages(
            all in prop::collection::vec(values(), 1..5),
            cut in any::<prop::sample::Index>(),
        ) {
            let lines: Vec<Vec<u8>> = all.iter().map(|value| encode(value).unwrap()).collect();
            let bytes = lines.concat();
            prop_assert_eq!(&read_all(&bytes).unwrap(), &all);
            let cut = cut.index(bytes.len());
            let whole = lines.iter().scan(0, |end, line| { *end += line.len(); Some(*end) }).filter(|end| *end <= cut).count();
            prop_assert_eq!(&read_all(&bytes[..cut]).unwrap()[..], &all[..whole]);
        }
    }

    #[test]
    fn a_line_beyond_the_limit_and_malformed_messages_are_errors() {
        let mut endless = BufReader::new(tokio::io::repeat(b'1'));
        let found = block_on(read::<_, Value>(&mut endless, || ()));
        assert!(matches!(found, Err(JsonLineError::TooLong)));
        for bytes in
            [&b"\xff\n"[..], b"hello\n", b"{} {}\n", b"{\"half\": 1\n", b"NaN\n", b"\"\\ud800\"\n", b"\n"]
        {
            assert!(matches!(read_all(bytes), Err(JsonLineError::Unreadable(_))), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_cut_line_is_an_error_when_the_next_heartbeat_arrives() {
        let bytes = [&b"{\"t\": \"do"[..], &encode(&json!({"t": "beat"})).unwrap()].concat();
        assert!(matches!(read_all(&bytes), Err(JsonLineError::Unreadable(_))));
    }

    /// Number of signs of life in ten minutes of a stream that sends `each` bytes every `pause` seconds.
    async fn signs_of(each: usize, pause: u64) -> usize {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        tokio::spawn(async move {
            // Ends when the reader is gone.
            while near.write_all(&vec![b'1'; each]).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(pause)).await;
            }
        });
        let signs = Cell::new(0);
        let mut far = BufReader::new(far);
        let reading = read::<_, Value>(&mut far, || signs.set(signs.get() + 1));
        let found = tokio::time::timeout(Duration::from_secs(599), reading).await;
        assert!(found.is_err(), "{found:?}");
        signs.get()
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_bytes_without_a_line_end_are_not_a_sign_of_life() {
        assert_eq!(signs_of(24, 5).await, 0);
        assert_eq!(signs_of(STEP, 50).await, 12, "a long, slow line is a sign of life");
    }

    #[test]
    fn a_line_that_grows_is_a_sign_of_life() {
        let text = json!("x".repeat(3 * STEP));
        let line = encode(&text).unwrap();
        let signs = Cell::new(0);
        let found: Option<Value> = block_on(read(&mut &line[..], || signs.set(signs.get() + 1))).unwrap();
        assert!(found == Some(text));
        assert_eq!(signs.get(), 4, "three steps, and the end of the line");
    }

    #[test]
    fn messages_begin_after_the_opening_whatever_was_printed_before() {
        let line = encode(&json!({"t": "beat"})).unwrap();
        for before in [&b""[..], b"warning: \0minds-\0\0", b"\0minds-host"] {
            let bytes = [before, OPENING, &line].concat();
            let found = block_on(async {
                let mut stream = &bytes[..];
                assert!(open(&mut stream).await.unwrap());
                read::<_, Value>(&mut stream, || ()).await.unwrap()
            });
            assert_eq!(found, Some(json!({"t": "beat"})));
        }
        assert!(!block_on(open(&mut &b"no such file"[..])).unwrap());
        assert!(matches!(block_on(open(&mut &vec![b'y'; CHATTER][..])), Err(JsonLineError::NoOpening)));
    }
}
