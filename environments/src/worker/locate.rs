//! From the id of an environment to its module.
//!
//! An id that is a path names a file, or a folder that holds a package or is one. A folder whose module has another
//! name than the folder says so in its `pyproject.toml`, or holds only that one. Any other id is the name of an
//! installed module, or of one in the working directory.

use crate::error::EnvError;
use crate::native::is_path;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Location of a Python module.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModuleLocation {
    /// A folder that must be importable, if the environment was named by its path.
    pub path: Option<String>,
    pub module: String,
    /// The environment's own folder.
    pub home: Option<PathBuf>,
}

/// Finds the module of an id.
pub(super) fn locate(id: &str) -> Result<ModuleLocation, EnvError> {
    if !is_path(id) {
        return Ok(ModuleLocation { path: None, module: module_name(id), home: None });
    }
    let file = PathBuf::from(format!("{}.py", id.trim_end_matches('/')));
    let path = match Path::new(id).canonicalize() {
        Ok(path) => path,
        // The original harness writes a module's path as imports do, without its ending.
        Err(_) => file.canonicalize().map_err(|_| EnvError::NoFolder { path: id.into() })?,
    };
    let name = module_name(&path.file_stem().unwrap_or_default().to_string_lossy());
    if path.is_file() {
        let home = path.parent().unwrap_or(Path::new("/")).to_owned();
        return Ok(found(&home, name, home.clone()));
    }
    let roots = [path.clone(), path.join("src")];
    if let Some(root) = roots.iter().find(|root| holds(root, &name)) {
        return Ok(found(root, name, path));
    }
    if path.join("__init__.py").is_file() {
        let parent = path.parent().unwrap_or(Path::new("/")).to_owned();
        return Ok(found(&parent, name, path));
    }
    if let Some((root, module)) = declared(&path, &roots) {
        return Ok(found(&root, module, path));
    }
    for root in &roots {
        let modules = modules_in(root);
        match modules.len() {
            0 => {}
            1 => return Ok(found(root, modules.into_iter().collect(), path)),
            _ => return Err(EnvError::ManyModules { path: id.into(), name, modules: listed(&modules) }),
        }
    }
    Err(EnvError::NoPackage { path: id.into(), name })
}

fn found(root: &Path, module: String, home: PathBuf) -> ModuleLocation {
    ModuleLocation { path: Some(root.display().to_string()), module, home: Some(home) }
}

fn module_name(id: &str) -> String {
    id.replace('-', "_")
}

/// Whether a module of this name lies directly in a folder.
fn holds(root: &Path, module: &str) -> bool {
    !module.is_empty()
        && (root.join(module).join("__init__.py").is_file() || root.join(format!("{module}.py")).is_file())
}

/// The module that a project's `pyproject.toml` names, if it is there.
fn declared(folder: &Path, roots: &[PathBuf]) -> Option<(PathBuf, String)> {
    let text = std::fs::read_to_string(folder.join("pyproject.toml")).ok()?;
    let project: Table = text.parse().ok()?;
    names(&project).into_iter().find_map(|name| {
        // Some tools name the package by its path.
        let path = Path::new(&name);
        let module = module_name(path.file_name()?.to_str()?);
        let parent = path.parent()?;
        let own = if parent.as_os_str().is_empty() { folder.to_owned() } else { folder.join(parent) };
        let root = std::iter::once(&own).chain(roots).find(|root| holds(root, &module))?;
        Some((root.clone(), module))
    })
}

/// Module names that common packaging tools declare for a project, the most explicit first.
fn names(project: &Table) -> Vec<String> {
    let at = |keys: &[&str]| {
        let (first, rest) = keys.split_first()?;
        rest.iter().try_fold(project.get(*first)?, |at, key| at.get(*key))
    };
    let texts = |value: Option<&Value>| -> Vec<String> {
        match value {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(all)) => {
                let text = |value: &Value| match value {
                    Value::Table(table) => table.get("include")?.as_str().map(str::to_owned),
                    value => value.as_str().map(str::to_owned),
                };
                all.iter().filter_map(text).collect()
            }
            _ => Vec::new(),
        }
    };
    [
        &["tool", "setuptools", "packages"][..],
        &["tool", "setuptools", "py-modules"],
        &["tool", "hatch", "build", "targets", "wheel", "packages"],
        &["tool", "hatch", "build", "targets", "wheel", "include"],
        &["tool", "hatch", "build", "include"],
        &["tool", "poetry", "packages"],
        &["tool", "flit", "module", "name"],
        &["tool", "uv", "build-backend", "module-name"],
        &["project", "name"],
        &["tool", "poetry", "name"],
    ]
    .into_iter()
    .flat_map(|keys| texts(at(keys)))
    .map(|name| name.strip_suffix(".py").unwrap_or(&name).to_owned())
    .collect()
}

/// Packages and modules directly in a folder, except those that only serve the project, such as tests.
fn modules_in(root: &Path) -> BTreeSet<String> {
    let about = |name: &str| {
        matches!(name, "setup" | "conftest" | "noxfile" | "tests" | "test" | "docs" | "examples" | "scripts")
            || name.starts_with("test_")
    };
    let entries = std::fs::read_dir(root).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let path = entry.path();
            let is_module =
                path.extension().is_some_and(|end| end == "py") || path.join("__init__.py").is_file();
            let name = path.file_stem()?.to_str()?.to_owned();
            (is_module && !about(&name) && !name.contains('.')).then_some(name)
        })
        .collect()
}

fn listed(modules: &BTreeSet<String>) -> String {
    modules.iter().map(|module| format!("`{module}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder `my-env` with these files, and what is found under an id below its parent.
    fn look(files: &[(&str, &str)], id: &str) -> Result<(String, String), String> {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let id = root.join(id).display().to_string();
        let found = locate(&id).map_err(|error| error.to_string())?;
        let path = found.path.unwrap();
        let path = path.strip_prefix(&root.display().to_string()).unwrap().trim_start_matches('/').to_owned();
        Ok((path, found.module))
    }

    #[test]
    fn a_path_leads_to_its_module() {
        let hatch =
            "[project]\nname = \"other\"\n[tool.hatch.build.targets.wheel]\npackages = [\"src/real\"]";
        let poetry = "[tool.poetry]\nname = \"x\"\npackages = [{ include = \"real\" }]";
        for (files, id, path, module) in [
            (&[("my-env/__init__.py", "")][..], "my-env", "", "my_env"),
            (&[("my-env/my_env/__init__.py", "")], "my-env", "my-env", "my_env"),
            (&[("my-env/src/my_env/__init__.py", "")], "my-env/", "my-env/src", "my_env"),
            (&[("my-env/my_env.py", "")], "my-env", "my-env", "my_env"),
            (&[("evals/x.py", "")], "evals/x.py", "evals", "x"),
            // The ending may be left out.
            (&[("evals/x.py", "")], "evals/x", "evals", "x"),
            // A folder of that name comes first.
            (&[("evals/x.py", ""), ("evals/x/__init__.py", "")], "evals/x", "evals", "x"),
            // The module has another name than the folder.
            (
                &[
                    ("my-env/pyproject.toml", "[project]\nname = \"Real-Thing\""),
                    ("my-env/Real_Thing.py", ""),
                ],
                "my-env",
                "my-env",
                "Real_Thing",
            ),
            (
                &[
                    ("my-env/pyproject.toml", hatch),
                    ("my-env/src/real/__init__.py", ""),
                    ("my-env/tool.py", ""),
                ],
                "my-env",
                "my-env/src",
                "real",
            ),
            (
                &[("my-env/pyproject.toml", poetry), ("my-env/real/__init__.py", ""), ("my-env/a.py", "")],
                "my-env",
                "my-env",
                "real",
            ),
            // Nothing names it, and it is the only one.
            (
                &[
                    ("my-env/pyproject.toml", "[project]\nname = \"something-env\""),
                    ("my-env/real/__init__.py", ""),
                    ("my-env/tests/__init__.py", ""),
                    ("my-env/setup.py", ""),
                ],
                "my-env",
                "my-env",
                "real",
            ),
            (&[("my-env/src/real.py", "")], "my-env", "my-env/src", "real"),
        ] {
            assert_eq!(look(files, id), Ok((path.into(), module.into())), "{files:?} {id}");
        }
    }

    #[test]
    fn an_ambiguous_module_is_refused_by_name() {
        let two = [("my-env/a.py", ""), ("my-env/b.py", "")];
        let error = look(&two, "my-env").unwrap_err();
        assert!(error.contains("`a`, `b`") && error.contains("pyproject.toml"), "{error}");
        let error = look(&[("my-env/README.md", "")], "my-env").unwrap_err();
        assert!(error.contains("`my_env/__init__.py`"), "{error}");
        assert!(look(&[], "my-env").unwrap_err().contains("there is no folder or file"));
        assert_eq!(locate("some-module").unwrap().module, "some_module");
    }
}
