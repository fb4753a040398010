//! Modules of a crate that import each other in a circle cannot be read one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The folder of each crate.
const CRATES: [&str; 11] = [
    "",
    "actors",
    "core",
    "engine",
    "environments",
    "http",
    "models",
    "observe",
    "server",
    "simulation",
    "tinker",
];

/// The modules that each top-level module of a crate imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Reads the `.rs` files of a module, which lie `depth` modules below the root of the crate.
fn read(path: &Path, depth: usize, module: &str, imports: &mut Imports) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let inner = path.is_dir() || path.file_name().unwrap() != "mod.rs";
            read(&path, depth + usize::from(inner), module, imports);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs")
        && path.file_stem().unwrap() != "tests"
    {
        let text = fs::read_to_string(path).unwrap();
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
        let lines = code.lines().map(|line| line.split("//").next().unwrap());
        let code: String = lines.flat_map(|line| [line.trim(), " "]).collect();
        imports.entry(module.into()).or_default().extend(imported(&code, depth));
    }
}

/// First names after the root of the crate, in code that lies `depth` modules below it.
fn imported(code: &str, depth: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for root in ["crate::".into(), "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&root) {
            let before = code[..at].chars().next_back().unwrap_or(' ');
            if !before.is_alphanumeric() && !"_:$".contains(before) {
                names(&code[at + root.len()..], &mut found);
            }
        }
    }
    found
}

/// The name that the path begins with, or the names in its braces.
fn names(path: &str, found: &mut BTreeSet<String>) {
    let name = |path: &str| path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(list) = path.strip_prefix('{') else {
        found.insert(name(path));
        return;
    };
    let mut open = 0;
    let mut begins = true;
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => open += 1,
            '}' if open == 0 => return,
            '}' => open -= 1,
            ',' if open == 0 => begins = true,
            ' ' => {}
            _ if begins => {
                found.insert(name(&list[at..]));
                begins = false;
            }
            _ => {}
        }
    }
}

/// The imports between the top-level modules of a crate.
fn imports(src: &Path) -> Imports {
    let mut imports = Imports::new();
    for entry in fs::read_dir(src).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_string_lossy().into_owned();
        if module != "lib" && module != "main" {
            read(&path, 1, &module, &mut imports);
        }
    }
    let modules: BTreeSet<String> = imports.keys().cloned().collect();
    for (module, imported) in &mut imports {
        imported.retain(|name| name != module && modules.contains(name));
    }
    imports
}

/// The modules that import themselves by way of others.
fn circles(imports: &Imports) -> Vec<&str> {
    let reaches_itself = |module: &str| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&str> = imports[module].iter().map(String::as_str).collect();
        while let Some(next) = open.pop() {
            if seen.insert(next) {
                open.extend(imports[next].iter().map(String::as_str));
            }
        }
        seen.contains(module)
    };
    imports.keys().map(String::as_str).filter(|module| reaches_itself(module)).collect()
}

#[test]
fn no_modules_of_a_crate_import_each_other_in_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in CRATES {
        let imports = imports(&root.join(folder).join("src"));
        assert!(imports.len() > 2, "{folder} has no modules");
        assert_eq!(circles(&imports), [""; 0], "{folder}: {imports:#?}");
    }
}

#[test]
fn a_circle_is_found_by_whatever_path_it_imports() {
    let code = "use crate::a::B; use crate::{c, d::{e, f}}; use super::super::g; pub(crate) fn h() { crate::i::j() }";
    let found: Vec<_> = imported(code, 2).into_iter().collect();
    assert_eq!(found, ["a", "c", "d", "g", "i"]);
    let imports = |pairs: &[(&str, &str)]| -> Imports {
        pairs.iter().map(|(from, to)| ((*from).into(), [(*to).into()].into())).collect()
    };
    assert_eq!(circles(&imports(&[("a", "b"), ("b", "c"), ("c", "b")])), ["b", "c"]);
}
