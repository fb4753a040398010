//! `events.out.tfevents.…`: the metrics of all steps and evaluations, for TensorBoard and compatible readers.
//!
//! The files are in the run folder itself, so that `tensorboard --logdir outputs` shows each run under the name of its
//! folder. Each process of the run writes its own file, which starts with a mark that discards the steps after the
//! checkpoint that the run resumes from, so that no step shows twice. Each record is written at once with its
//! checksums; a record truncated by a kill ends its file, and readers continue with the next one. Non-finite values are
//! written unchanged. An error with these files is logged and does not end the run.
//!
//! The framing is TFRecord, the messages are those of TensorFlow's `event.proto` and `summary.proto`, as far as scalars
//! need them.

use minds_core::reward::Metrics;
use prost::{Message, Oneof};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// Since this version of the format, session marks and not step numbers show where a run restarted.
const VERSION: &str = "brain.Event:2";

/// Writes the event files of a run.
pub struct TensorBoardWriter {
    folder: PathBuf,
    state: EventFileState,
}

enum EventFileState {
    /// This process has not written anything yet; it resumes after `step`.
    Due { step: u64 },
    /// The open file of this process.
    Open(File),
    /// A write failed, so nothing more is written.
    Off,
}

impl TensorBoardWriter {
    /// Creates a writer for a run that resumes after `step`. Nothing is written before the first metrics.
    #[must_use]
    pub fn after(folder: &Path, step: u64) -> Self {
        Self { folder: folder.to_owned(), state: EventFileState::Due { step } }
    }

    /// Adds the numbers of a step.
    pub fn append(&mut self, step: u64, numbers: Metrics) {
        if let Err(error) = self.try_append(step, numbers) {
            tracing::warn!(folder = %self.folder.display(), %error, "nothing more is written for TensorBoard");
            self.state = EventFileState::Off;
        }
    }

    fn try_append(&mut self, step: u64, numbers: Metrics) -> io::Result<()> {
        if let EventFileState::Due { step } = self.state {
            let mut file = create(&self.folder)?;
            write(&mut file, 0, EventPayload::FileVersion(VERSION.into()))?;
            // Readers discard what they have of this step and of later ones.
            write(&mut file, step + 1, EventPayload::SessionLog(SessionLog { status: 1 }))?;
            self.state = EventFileState::Open(file);
        }
        let EventFileState::Open(file) = &mut self.state else { return Ok(()) };
        let value = numbers.into_iter().map(|(tag, number)| ScalarValue { tag, simple: Some(number as f32) });
        write(file, step, EventPayload::Summary(ScalarSummary { value: value.collect() }))
    }
}

/// Creates a file named by the time, since readers order the files of a folder by name.
fn create(folder: &Path) -> io::Result<File> {
    let now = jiff::Timestamp::now().as_second();
    for second in now.. {
        let path = folder.join(format!("events.out.tfevents.{second}.minds-actors"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened,
        }
    }
    unreachable!("a second without a file comes before the end of time")
}

fn write(file: &mut File, step: u64, what: EventPayload) -> io::Result<()> {
    let wall_time = jiff::Timestamp::now().as_duration().as_secs_f64();
    let event = TensorBoardEvent { wall_time, step: step as i64, what: Some(what) };
    file.write_all(&record(&event.encode_to_vec()))
}

/// TFRecord frame: length, its checksum, the bytes, their checksum; all little-endian.
fn record(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), bytes, &masked(bytes)].concat()
}

/// Masked CRC-32C (rotated and offset), because the CRC of bytes that contain their own CRC is weak.
fn masked(bytes: &[u8]) -> [u8; 4] {
    let crc = crc32c::crc32c(bytes);
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[derive(Clone, PartialEq, Message)]
struct TensorBoardEvent {
    /// Unix time of the record, in seconds.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "EventPayload", tags = "3, 5, 7")]
    what: Option<EventPayload>,
}

#[derive(Clone, PartialEq, Oneof)]
enum EventPayload {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(ScalarSummary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

#[derive(Clone, PartialEq, Message)]
struct ScalarSummary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<ScalarValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScalarValue {
    #[prost(string, tag = "1")]
    tag: String,
    /// Optional because it is part of a oneof in the format; so 0 is written too.
    #[prost(float, optional, tag = "2")]
    simple: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    /// An enumeration, which the wire has as an integer: 1 is the start of a session.
    #[prost(int32, tag = "1")]
    status: i32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The check value of CRC-32C in RFC 3720's catalogue is 0xe3069283 for "123456789"; turned right by 15 bits it is
    /// 0x2507c60d, and with 0xa282ead8 added 0xc78ab0e5.
    #[test]
    fn a_checksum_is_masked_as_the_format_requires() {
        assert_eq!(masked(b"123456789"), 0xc78a_b0e5_u32.to_le_bytes());
    }

    #[test]
    fn a_record_holds_its_length_and_its_bytes() {
        let record = record(b"abc");
        assert_eq!(record.len(), 8 + 4 + 3 + 4);
        assert_eq!((&record[..8], &record[12..15]), (&3_u64.to_le_bytes()[..], &b"abc"[..]));
    }

    /// Field 1 is a string of one byte; field 2 is a float, wire type 5.
    #[test]
    fn zero_and_nan_are_written() {
        let bytes = |simple| ScalarValue { tag: "x".into(), simple: Some(simple) }.encode_to_vec();
        assert_eq!(bytes(0.0), [0x0a, 1, b'x', 0x15, 0, 0, 0, 0]);
        assert_eq!(bytes(f32::INFINITY), [0x0a, 1, b'x', 0x15, 0, 0, 0x80, 0x7f]);
    }

    #[test]
    fn a_life_without_a_number_leaves_no_file_and_two_lives_of_a_second_leave_two() {
        let dir = tempfile::tempdir().unwrap();
        let files = || fs::read_dir(dir.path()).unwrap().count();
        drop(TensorBoardWriter::after(dir.path(), 0));
        assert_eq!(files(), 0);
        let row = Metrics::from([("reward".into(), 0.5)]);
        for _ in 0..2 {
            TensorBoardWriter::after(dir.path(), 0).append(1, row.clone());
        }
        assert_eq!(files(), 2);
    }

    #[test]
    fn a_folder_that_is_gone_ends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut events = TensorBoardWriter::after(&dir.path().join("gone"), 0);
        events.append(1, Metrics::from([("reward".into(), 0.5)]));
        assert!(matches!(events.state, EventFileState::Off));
    }
}
