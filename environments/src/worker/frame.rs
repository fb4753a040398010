//! Frames between a run and a Python host: a length in four bytes, big end first, and a MessagePack map.
//!
//! A frame that is too long or that nobody can read is an error with its size or its place, never a guess.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Most bytes of a frame.
const LIMIT: usize = 256 << 20;

/// What a host writes before its first frame. What came earlier was printed by the interpreter's start.
const OPENING: &[u8] = b"\0minds-host\n";

/// Most bytes that an interpreter's start may print.
const CHATTER: usize = 1 << 20;

/// A stream that is no longer worth reading.
#[derive(Debug, Error)]
pub(super) enum FrameError {
    #[error("it sent a frame of {0} bytes, the limit is {LIMIT}")]
    TooLong(usize),
    #[error("it sent a frame that cannot be read: {0}")]
    Unreadable(#[from] rmp_serde::decode::Error),
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

/// The next message; `None` if the stream ends, also where it ends within a frame: its writer has died.
pub(super) async fn read<R, M>(stream: &mut R) -> Result<Option<M>, FrameError>
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
    if let Err(error) = stream.take(length as u64).read_to_end(&mut body).await {
        return ended(error);
    }
    if body.len() < length {
        return Ok(None);
    }
    Ok(Some(rmp_serde::from_slice(&body)?))
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

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    fn read_all(mut bytes: &[u8]) -> Result<Vec<Value>, FrameError> {
        block_on(async {
            let mut found = Vec::new();
            while let Some(value) = read(&mut bytes).await? {
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
    fn a_length_beyond_the_limit_and_bytes_that_are_no_message_are_errors() {
        assert!(matches!(read_all(&[0xff; 8]), Err(FrameError::TooLong(0xffff_ffff))));
        assert!(matches!(read_all(&[0, 0, 0, 1, 0xc1]), Err(FrameError::Unreadable(_))));
    }

    #[test]
    fn frames_begin_after_the_opening_whatever_was_printed_before() {
        let frame = encode(&json!({"t": "beat"})).unwrap();
        for before in [&b""[..], b"warning: \0minds-\0\0", b"\0minds-host"] {
            let bytes = [before, OPENING, &frame].concat();
            let found = block_on(async {
                let mut stream = &bytes[..];
                assert!(open(&mut stream).await.unwrap());
                read::<_, Value>(&mut stream).await.unwrap()
            });
            assert_eq!(found, Some(json!({"t": "beat"})));
        }
        assert!(!block_on(open(&mut &b"no such file"[..])).unwrap());
        assert!(matches!(block_on(open(&mut &vec![b'y'; CHATTER][..])), Err(FrameError::NoOpening)));
    }
}
