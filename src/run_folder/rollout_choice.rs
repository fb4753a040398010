//! Chooses a few rollouts of a run for a report: for each environment the best, the worst, and some drawn at random
//! from its first and its last steps.
//!
//! The same folder and seed give the same choice. A long run is read in part, and the report states how much: files are
//! skipped evenly, and the last one is always read. A first pass reads only the header of each line; chosen rollouts
//! are read in full.

use super::bounded_lines::{SkippedLines, TEXTS};
use super::reading::{first_of, left_out};
use super::rollouts::{FOLDER, MOST_BYTES, RolloutHeader, RowPosition, StepFile, place, step_files};
use minds_core::random::seeded_rng;
use minds_core::record::RolloutRow;
use minds_observe::report::{ChosenRollouts, RolloutSelection};
use rand::RngExt as _;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// Maximum number of files read.
const MOST_FILES: usize = 400;
/// Maximum number of rollouts of each kind.
const OF_EACH: usize = 2;
/// Number of steps at each end that random rollouts are drawn from.
const ENDS: usize = 10;

/// Position of a rollout in its file.
struct RolloutLocation {
    header: RolloutHeader,
    file: usize,
    position: RowPosition,
    /// Random key, drawn for each rollout by itself.
    random_key: u64,
}

/// Chooses from all rollouts of a run. Unreadable files and lines leave notes.
pub fn chosen_rollouts(folder: &Path, seed: u64, notes: &mut Vec<String>) -> ChosenRollouts {
    choose(&step_files(folder, notes), seed, notes)
}

/// Chooses from these files, which are in the order of their steps.
fn choose(all: &[StepFile], seed: u64, notes: &mut Vec<String>) -> ChosenRollouts {
    let files = spread(all);
    let mut damage = SkippedLines::default();
    let mut unread = Vec::new();
    let mut locations: BTreeMap<String, Vec<RolloutLocation>> = BTreeMap::new();
    for (n, file) in files.iter().enumerate() {
        let scanned = file.scan(&mut damage, |header, position| {
            let random_key = seeded_rng([seed, header.step, header.group, header.member]).random();
            let name = header.environment.clone();
            let location = RolloutLocation { header, file: n, position, random_key };
            locations.entry(name).or_default().push(location);
        });
        match scanned {
            Ok(true) => {}
            Ok(false) => {
                let read = MOST_BYTES >> 20;
                unread.push(format!("{} was read in part: the first {read} MiB", place(&file.path)));
            }
            Err(error) => unread.push(left_out(&place(&file.path), &error)),
        }
    }
    let end = ENDS.min(files.len() / 2);
    let late_from = files.len() - ENDS.min(files.len().div_ceil(2));
    let newest = |a: &RolloutLocation, b: &RolloutLocation| {
        b.header.step.cmp(&a.header.step).then(a.random_key.cmp(&b.random_key))
    };
    let rising = |a: &RolloutLocation, b: &RolloutLocation| a.header.reward.total_cmp(&b.header.reward);
    let by_random_key = |a: &RolloutLocation, b: &RolloutLocation| a.random_key.cmp(&b.random_key);
    let mut environments = BTreeMap::new();
    for (environment, locations) in locations {
        let some = |among: &dyn Fn(&RolloutLocation) -> bool,
                    order: &dyn Fn(&RolloutLocation, &RolloutLocation) -> Ordering| {
            pick(&files, locations.iter().filter(|location| among(location)).collect(), order)
        };
        let mut kinds = RolloutSelection {
            best: some(&|_| true, &|a, b| rising(b, a).then(newest(a, b))),
            worst: some(&|_| true, &|a, b| rising(a, b).then(newest(a, b))),
            early: some(&|location| location.file < end, &by_random_key),
            late: some(&|location| location.file >= late_from, &by_random_key),
        };
        let greatest = kinds.best.first().map(|rollout| rollout.reward);
        kinds.worst.retain(|rollout| Some(rollout.reward) != greatest);
        environments.insert(environment, kinds);
    }
    notes.extend(damage.notes(FOLDER, TEXTS));
    notes.extend(first_of(&unread));
    ChosenRollouts { environments, read: files.len(), steps: all.len() }
}

/// Reads the first rollouts in this order, at most one per group.
fn pick(
    files: &[&StepFile],
    mut locations: Vec<&RolloutLocation>,
    order: &dyn Fn(&RolloutLocation, &RolloutLocation) -> Ordering,
) -> Vec<RolloutRow<'static>> {
    locations.sort_by(|a, b| order(a, b));
    let mut groups = HashSet::new();
    let new =
        locations.into_iter().filter(|location| groups.insert((location.header.step, location.header.group)));
    // A run in progress may have replaced the file since it was scanned.
    new.take(OF_EACH).filter_map(|location| files[location.file].read(location.position).ok()).collect()
}

/// Selects as many files as the limits allow, evenly spread.
fn spread(files: &[StepFile]) -> Vec<&StepFile> {
    let bytes = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
    let affordable = (MOST_BYTES as f64 / bytes.max(1) as f64 * files.len() as f64) as usize;
    let most = affordable.clamp(1, MOST_FILES);
    if files.len() <= most {
        return files.iter().collect();
    }
    let last = files.len() - 1;
    let gaps = (most - 1).max(1);
    (0..most).map(|n| &files[last - (most - 1 - n) * last / gaps]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn files(folder: &Path, rewards: &[&[f64]]) -> Vec<StepFile> {
        let file = |(n, rewards): (usize, &&[f64])| {
            let step = n as u64 + 1;
            let row = |(group, reward): (usize, &f64)| {
                format!(
                    "{{\"step\":{step},\"environment\":\"e\",\"group\":{group},\"item\":0,\"member\":0,\"policy\":0,\
                     \"reward\":{reward},\"advantage\":0,\"metrics\":{{\"x\":null}},\"prompt\":[],\"turns\":[]}}\n"
                )
            };
            let path = folder.join(format!("{step}.jsonl"));
            fs::write(&path, rewards.iter().enumerate().map(row).collect::<String>()).unwrap();
            StepFile { step, bytes: fs::metadata(&path).unwrap().len(), path, compressed: false }
        };
        rewards.iter().enumerate().map(file).collect()
    }

    fn steps(rollouts: &[RolloutRow<'_>]) -> Vec<(u64, f32)> {
        rollouts.iter().map(|r| (r.step, r.reward)).collect()
    }

    #[test]
    fn the_best_and_the_worst_come_first_and_random_picks_stay_in_their_part_of_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), &[&[0.1, 1.0], &[0.5, 0.5], &[0.0, 1.0], &[0.2, 0.3]]);
        let chosen = choose(&files, 0, &mut Vec::new());
        let kinds = &chosen.environments["e"];
        assert_eq!(steps(&kinds.best), [(3, 1.0), (1, 1.0)], "of equal ones the newest is first");
        assert_eq!(steps(&kinds.worst), [(3, 0.0), (1, 0.1)]);
        assert!(kinds.late.iter().all(|r| r.step > 2), "{:?}", kinds.late);
        assert!(kinds.early.iter().all(|r| r.step <= 2), "{:?}", kinds.early);
        let all = [&kinds.best, &kinds.worst, &kinds.late, &kinds.early].map(|kind| kind.len());
        assert_eq!(all, [2, 2, 2, 2]);
        assert_eq!(steps(&choose(&files, 0, &mut Vec::new()).environments["e"].late), steps(&kinds.late));
    }

    #[test]
    fn a_single_step_is_the_last_one_and_a_damaged_line_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), &[&[0.5]]);
        let text = fs::read_to_string(&files[0].path).unwrap();
        fs::write(&files[0].path, format!("{text}{{\"step\":")).unwrap();
        let mut notes = Vec::new();
        let chosen = choose(&files, 0, &mut notes);
        let kinds = &chosen.environments["e"];
        assert_eq!(
            [&kinds.best, &kinds.late, &kinds.worst, &kinds.early].map(|kind| kind.len()),
            [1, 1, 0, 0]
        );
        assert_eq!(notes, ["rollouts: damaged lines are left out: rollouts/1.jsonl:2"]);
        assert!(choose(&[], 0, &mut notes).environments.is_empty());
    }

    #[test]
    fn a_missing_or_irregular_file_is_reported_and_the_others_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), &[&[0.5], &[0.25], &[1.0]]);
        fs::remove_file(&files[0].path).unwrap();
        fs::remove_file(&files[2].path).unwrap();
        fs::create_dir(&files[2].path).unwrap();
        let mut notes = Vec::new();
        let chosen = choose(&files, 0, &mut notes);
        assert_eq!(steps(&chosen.environments["e"].best), [(2, 0.25)]);
        let [note] = &notes[..] else { panic!("one note: {notes:?}") };
        assert!(note.contains("1.jsonl is left out: ") && note.ends_with("and 1 more such file"), "{note}");
    }

    #[test]
    fn a_long_run_is_read_in_part_from_its_first_step_to_its_last() {
        let of = |count: u64, bytes| -> Vec<u64> {
            let files: Vec<StepFile> = (1..=count)
                .map(|step| StepFile { step, bytes, path: "x".into(), compressed: false })
                .collect();
            spread(&files).iter().map(|file| file.step).collect()
        };
        let many = of(100_000, 10);
        assert_eq!((many.len(), many[0], many[399]), (400, 1, 100_000));
        assert!(many.is_sorted_by(|a, b| a < b));
        assert_eq!(of(10, MOST_BYTES / 4), [1, 4, 7, 10], "four of them may be read");
        assert_eq!(of(3, 2 * MOST_BYTES), [3]);
        assert_eq!(of(3, 1), [1, 2, 3]);
    }
}
