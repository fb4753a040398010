//! Frames between a run and a Python worker: a length in four bytes, big-endian, and a MessagePack map.
//!
//! A frame that is too long, unreadable or incomplete for too long is an error with its size or its place, never a
//! guess. So bytes that are not a frame are found at once or after a while, whatever they look like.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Cursor;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

/// Maximum size of a frame, in bytes.
const LIMIT: usize = 256 << 20;

/// What a worker writes before its first frame. Earlier output comes from the interpreter's start.
const OPENING: &[u8] = b"\0minds-host\n";

/// Most bytes that an interpreter's start may print.
const CHATTER: usize = 1 << 20;

/// A frame that has begun must grow by this number of bytes, or end …
const STEP: usize = 1 << 16;

/// … within this time. An invalid length swallows the bytes that follow: heartbeats, a few bytes every few
/// seconds. A live writer sends this much at once.
const STALL: Duration = Duration::from_secs(60);

/// A stream that cannot be read any further.
#[derive(Debug, Error)]
pub(super) enum FrameError {
    #[error("it sent a frame of {0} bytes, the limit is {LIMIT}")]
    TooLong(usize),
    #[error("it sent a frame that cannot be read: {0}")]
    Unreadable(#[from] rmp_serde::decode::Error),
    #[error("it sent a frame of {length} bytes whose message ends after {end}")]
    Padded { length: usize, end: u64 },
    #[error(
        "it sent an incomplete frame of {length} bytes: {got} arrived, and too few in the last {} s",
        STALL.as_secs()
    )]
    Stalled { length: usize, got: usize },
    #[error("it sent {CHATTER} bytes and no frame: is the interpreter a Python?")]
    NoOpening,
    #[error("it cannot be read from: {0}")]
    Io(#[from] std::io::Error),
}

/// Reads up to where the frames begin; false if the stream ends before.
pub(super) async fn open<R: AsyncRead + Unpin>(stream: &mut R) -> Result<bool, FrameError> {
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
    Err(FrameError::NoOpening)
}

/// The next message; `None` if the stream ends, even within a frame: its writer has died. Calls `alive`
/// whenever a frame begins or has grown.
pub(super) async fn read<R, M>(stream: &mut R, alive: impl Fn()) -> Result<Option<M>, FrameError>
where
    R: AsyncRead + Unpin,
    M: DeserializeOwned,
{
    let ended = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Ok(None),
        _ => Err(FrameError::Io(error)),
    };
    let length = match stream.read_u32().await {
        Ok(length) => length as usize,
        Err(error) => return ended(error),
    };
    if length > LIMIT {
        return Err(FrameError::TooLong(length));
    }
    // Grows as the bytes come: a length alone costs no memory.
    let mut body = Vec::new();
    while body.len() < length {
        alive();
        let until = length.min(body.len() + STEP);
        let mut part = stream.take((until - body.len()) as u64);
        match timeout(STALL, part.read_to_end(&mut body)).await {
            Err(_) => return Err(FrameError::Stalled { length, got: body.len() }),
            Ok(Err(error)) => return ended(error),
            Ok(Ok(_)) if body.len() < until => return Ok(None),
            Ok(Ok(_)) => {}
        }
    }
    let mut bytes = rmp_serde::Deserializer::new(Cursor::new(&body));
    let message = M::deserialize(&mut bytes)?;
    match bytes.position() {
        end if end == length as u64 => Ok(Some(message)),
        end => Err(FrameError::Padded { length, end }),
    }
}

/// A message as a frame; `None` if it is too long.
pub(super) fn encode<M: Serialize>(message: &M) -> Option<Vec<u8>> {
    let mut frame = vec![0; 4];
    let written = rmp_serde::encode::write_named(&mut frame, message);
    written.expect("maps of text, numbers and lists can be written to memory");
    let length = frame.len() - 4;
    if length > LIMIT {
        return None;
    }
    frame[..4].copy_from_slice(&(length as u32).to_be_bytes());
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::cell::Cell;
    use tokio::io::AsyncWriteExt as _;
    use tokio::time::Instant;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    fn read_all(mut bytes: &[u8]) -> Result<Vec<Value>, FrameError> {
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
        fn what_is_written_is_read_and_a_cut_stream_gives_only_whole_frames(
            all in prop::collection::vec(values(), 1..5),
            cut in any::<prop::sample::Index>(),
        ) {
            let frames: Vec<Vec<u8>> = all.iter().map(|value| encode(value).unwrap()).collect();
            let bytes = frames.concat();
            prop_assert_eq!(&read_all(&bytes).unwrap(), &all);
            let cut = cut.index(bytes.len());
            let whole = frames.iter().scan(0, |end, frame| { *end += frame.len(); Some(*end) }).filter(|end| *end <= cut).count();
            prop_assert_eq!(&read_all(&bytes[..cut]).unwrap()[..], &all[..whole]);
        }
    }

    #[test]
    fn a_length_beyond_the_limit_and_malformed_messages_are_errors() {
        assert!(matches!(read_all(&[0xff; 8]), Err(FrameError::TooLong(0xffff_ffff))));
        assert!(matches!(read_all(&[0, 0, 0, 1, 0xc1]), Err(FrameError::Unreadable(_))));
        assert!(matches!(read_all(b"\0\0\0\x05hello"), Err(FrameError::Padded { length: 5, end: 1 })));
        assert!(matches!(read_all(&[0; 4]), Err(FrameError::Unreadable(_))), "an empty frame is no message");
    }

    /// What a stream gives that brings `each` bytes every so many seconds after a length, and after how many seconds.
    async fn trickle(length: u32, each: usize, pause: u64) -> (Result<Option<Value>, FrameError>, u64) {
        let (mut near, mut far) = tokio::io::duplex(1 << 20);
        tokio::spawn(async move {
            near.write_u32(length).await.unwrap();
            // Ends when the reader is gone.
            while near.write_all(&vec![b'1'; each]).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(pause)).await;
            }
        });
        let begun = Instant::now();
        let found = read(&mut far, || ()).await;
        (found, begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_frame_is_an_error_even_if_heartbeats_fill_it() {
        // 24 bytes are an answer to a beat, and beats are five seconds apart: twelve of them come in a minute.
        let (found, after) = trickle(1_000_000, 24, 5).await;
        let Err(FrameError::Stalled { length: 1_000_000, got }) = found else { panic!("{found:?}") };
        assert_eq!((after, (264..=312).contains(&got)), (60, true), "{got}");
        // Nothing comes at all.
        let (found, after) = trickle(1_000_000, 0, 1000).await;
        assert!(matches!(found, Err(FrameError::Stalled { got: 0, .. })) && after == 60, "{found:?}");
        // One that comes slowly is whole in the end. What it says here is a number, the first byte, and then too much.
        let (found, after) = trickle(200_000, STEP, 50).await;
        assert!(matches!(found, Err(FrameError::Padded { length: 200_000, end: 1 })), "{found:?}");
        assert_eq!(after, 150);
    }

    #[test]
    fn a_frame_that_grows_is_a_sign_of_life() {
        let frame = encode(&json!(vec![0; 3 * STEP])).unwrap();
        let signs = Cell::new(0);
        let found: Option<Value> = block_on(read(&mut &frame[..], || signs.set(signs.get() + 1))).unwrap();
        assert_eq!((found, signs.get()), (Some(json!(vec![0; 3 * STEP])), 4));
    }

    #[test]
    fn frames_begin_after_the_opening_whatever_was_printed_before() {
        let frame = encode(&json!({"t": "beat"})).unwrap();
        for before in [&b""[..], b"warning: \0minds-\0\0", b"\0minds-host"] {
            let bytes = [before, OPENING, &frame].concat();
            let found = block_on(async {
                let mut stream = &bytes[..];
                assert!(open(&mut stream).await.unwrap());
                read::<_, Value>(&mut stream, || ()).await.unwrap()
            });
            assert_eq!(found, Some(json!({"t": "beat"})));
        }
        assert!(!block_on(open(&mut &b"no such file"[..])).unwrap());
        assert!(matches!(block_on(open(&mut &vec![b'y'; CHATTER][..])), Err(FrameError::NoOpening)));
    }
}
