//! A type name means one thing in the whole workspace.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The `.rs` files below a folder, without tests, benches and build outputs.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "tests", "benches"].contains(&&*name) {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// The name that a line defines, if it begins a struct, an enum or a trait.
fn defined_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => line,
    };
    let rest = ["struct ", "enum ", "trait "].into_iter().find_map(|kind| line.strip_prefix(kind))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    // A macro that defines types has a `$` there.
    (end > 0).then_some(&rest[..end])
}

#[test]
fn a_type_name_is_defined_once_in_the_workspace() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(root, &mut files);
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
        let mut names: Vec<_> = code.lines().filter_map(defined_type).collect();
        names.sort_unstable();
        names.dedup();
        let place = file.strip_prefix(root).unwrap().display().to_string();
        names.into_iter().for_each(|name| places.entry(name.into()).or_default().push(place.clone()));
    }
    assert!(places.len() > 500, "only {} types were found", places.len());
    let twice: Vec<_> = places.iter().filter(|(_, places)| places.len() > 1).collect();
    assert!(twice.is_empty(), "name the idea of each place: {twice:#?}");
}
