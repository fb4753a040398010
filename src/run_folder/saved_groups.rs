//! `spares/000010.rmp`: groups that were ready and not yet trained when the last checkpoint was saved, so that they
//! need not be sampled again.
//!
//! MessagePack, one group after the other. The file is complete before the checkpoint's line is written, and the line
//! records its length and checksum. A file that does not match its line is logged and ignored; its groups are sampled
//! again. Only the last checkpoint keeps its file.

use anyhow::{Context as _, ensure};
use minds_stages::messages::SavedGroup;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

const FOLDER: &str = "spares";

/// Maximum bytes of the file; groups that do not fit are sampled again.
const MOST_BYTES: usize = 512 << 20;

/// Length and checksum of the file, as a checkpoint's line records them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedGroupsFile {
    /// Number of groups in the file.
    groups: usize,
    /// Length of the file in bytes.
    bytes: usize,
    /// CRC-32 of the bytes, as in zip files.
    crc32: u32,
}

/// CRC-32/ISO-HDLC checksum, as in zip files.
fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Writes the groups for the checkpoint of this name; `None` if no group was written.
pub(super) fn write(
    folder: &Path,
    name: &str,
    spares: &[SavedGroup],
) -> anyhow::Result<Option<SavedGroupsFile>> {
    let mut all = Vec::new();
    let mut groups = 0;
    for spare in spares {
        let group = rmp_serde::to_vec_named(spare).context("failed to write a group")?;
        if all.len() + group.len() > MOST_BYTES {
            tracing::warn!(left_out = spares.len() - groups, "waiting groups are too large to be kept");
            break;
        }
        all.extend(group);
        groups += 1;
    }
    if groups == 0 {
        return Ok(None);
    }
    let path = path(folder, name);
    fs::create_dir_all(folder.join(FOLDER)).context("failed to make the folder of spares")?;
    super::write_whole(&path, &all)?;
    Ok(Some(SavedGroupsFile { groups, bytes: all.len(), crc32: crc32(&all) }))
}

/// Removes the files of all checkpoints but this one.
pub(super) fn keep_only(folder: &Path, name: &str) -> anyhow::Result<()> {
    let own = path(folder, name);
    let files = fs::read_dir(folder.join(FOLDER)).into_iter().flatten().filter_map(Result::ok);
    for other in files.map(|file| file.path()).filter(|path| *path != own) {
        fs::remove_file(&other).with_context(|| format!("failed to remove {}", other.display()))?;
    }
    Ok(())
}

fn path(folder: &Path, name: &str) -> PathBuf {
    folder.join(FOLDER).join(format!("{name}.rmp"))
}

/// Reads the groups of a checkpoint; empty if its file cannot be used.
pub(super) fn read(folder: &Path, name: &str, kept: &SavedGroupsFile) -> Vec<SavedGroup> {
    try_read(&path(folder, name), kept).unwrap_or_else(|error| {
        tracing::warn!(
            error = format!("{error:#}"),
            "{} ready groups could not be kept and are resampled",
            kept.groups
        );
        Vec::new()
    })
}

fn try_read(path: &Path, kept: &SavedGroupsFile) -> anyhow::Result<Vec<SavedGroup>> {
    let all = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    let fits = all.len() == kept.bytes && crc32(&all) == kept.crc32;
    ensure!(fits, "{} is not what its checkpoint says", path.display());
    let mut rest = all.as_slice();
    let mut spares = Vec::new();
    while !rest.is_empty() {
        spares.push(rmp_serde::from_read(&mut rest).context("a group cannot be read")?);
    }
    let found = spares.len();
    let told = kept.groups;
    ensure!(found == told, "{} holds {found} groups, and its checkpoint says {told}", path.display());
    Ok(spares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::chat::Message;
    use minds_core::ids::{GroupId, ItemKey, PolicyVersion, RolloutId};
    use minds_core::reward::{Reward, Score};
    use minds_core::rollout::{Rollout, Turn};
    use minds_core::sampling::{Completion, StopReason};
    use minds_stages::messages::TrainingRollout;

    fn spare(id: u64) -> SavedGroup {
        let answer = Completion {
            topk: Some(vec![vec![(5, -0.5)], vec![]]),
            sequence_id: Some("a".into()),
            ..Completion::new(vec![5, 6], vec![-0.5, f32::MIN_POSITIVE], StopReason::Length)
        };
        let turn = Turn { prompt: [1, 2].into(), completion: answer, text: "ä".into(), complete: false };
        let group = GroupId(id);
        let item = ItemKey { component: 1, item: id };
        let id = RolloutId { group, member: 2 };
        let opening = [Message::user("a")].into();
        let rollout = Rollout {
            newest: Some(PolicyVersion(9)),
            turns: vec![turn],
            opening,
            ..Rollout::new(id, item, PolicyVersion(7))
        };
        let metrics = [("x".to_owned(), f64::INFINITY)].into();
        let score = Score { reward: Reward::new(0.1).unwrap(), metrics };
        SavedGroup {
            group,
            members: [TrainingRollout { rollout, score, advantage: -0.25, drift: vec![vec![0.5]] }].into(),
        }
    }

    #[test]
    fn groups_round_trip_and_an_unexpected_file_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let spares = [spare(3), spare(9)];
        let kept = write(dir.path(), "000010", &spares).unwrap().unwrap();
        assert_eq!(read(dir.path(), "000010", &kept), spares);
        assert_eq!(write(dir.path(), "000020", &[]).unwrap(), None);
        for groups in [0, 1, usize::MAX] {
            assert_eq!(
                read(dir.path(), "000010", &SavedGroupsFile { groups, ..kept.clone() }),
                [],
                "{groups} groups"
            );
        }
        let newer = write(dir.path(), "000030", &spares[..1]).unwrap().unwrap();
        assert_eq!(read(dir.path(), "000010", &newer), []);
        keep_only(dir.path(), "000030").unwrap();
        assert_eq!(read(dir.path(), "000010", &kept), [], "it is gone");
        let file = path(dir.path(), "000030");
        let mut bytes = fs::read(&file).unwrap();
        bytes[10] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert_eq!(read(dir.path(), "000030", &newer), []);
    }
}
