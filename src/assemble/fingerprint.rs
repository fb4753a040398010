//! Fingerprints of environments, which reveal a change between two starts of a run.

use crate::cli::VERSION;
use crate::config::environments::EnvPlan;
use crate::config::plan::RunPlan;
use crate::run_folder::{EnvironmentFingerprint, EnvironmentFingerprints};
use minds_core::environment::Environment;
use minds_environments::native;
use minds_stages::messages::MixtureComponent;
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io;
use std::path::Path;

/// Most rows that are hashed.
const ROWS: u64 = 256;

/// Most files of a package that are hashed, and most bytes read of one. A larger one counts by its length.
const FILES: usize = 4096;
const LARGEST: u64 = 16 << 20;

/// Fingerprints of all environments of a run, by their names in metrics.
#[must_use]
pub fn fingerprints(plan: &RunPlan, components: &[MixtureComponent]) -> EnvironmentFingerprints {
    plan.envs
        .iter()
        .zip(components)
        .map(|(env, component)| (env.name.clone(), fingerprint(env, &*component.environment)))
        .collect()
}

/// Fingerprint of one environment.
pub(super) fn fingerprint(env: &EnvPlan, environment: &dyn Environment) -> EnvironmentFingerprint {
    let rows = environment.items().get();
    let mut data = Sha256::new();
    let looked = rows.min(ROWS);
    for n in 0..looked {
        // Spread over all rows; all of them where there are few.
        let index = u128::from(n) * u128::from(rows) / u128::from(looked);
        let item = environment.item(u64::try_from(index).unwrap_or(u64::MAX));
        data.update(serde_json::to_vec(&item).unwrap_or_default());
    }
    EnvironmentFingerprint { rows, data: hex(data), code: code(&env.options.id) }
}

/// Identity of the code: the program version for a native environment, a hash of the files of a package. `None` for
/// an installed module.
fn code(id: &str) -> Option<String> {
    if native::is_native(id) {
        return Some(VERSION.to_owned());
    }
    let path = Path::new(id);
    let mut digest = Sha256::new();
    let mut left = FILES;
    add(&mut digest, path, "", &mut left).ok()?;
    Some(hex(digest))
}

/// Hashes a file, or a folder's files by name. Skips hidden files and those that Python generates.
fn add(digest: &mut Sha256, path: &Path, name: &str, left: &mut usize) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        let mut names: Vec<String> = fs::read_dir(path)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| !name.starts_with('.') && name != "__pycache__" && name != "outputs")
            .collect();
        names.sort();
        for inner in names {
            add(digest, &path.join(&inner), &format!("{name}/{inner}"), left)?;
        }
        return Ok(());
    }
    if !metadata.is_file() || *left == 0 {
        return Ok(());
    }
    *left -= 1;
    digest.update(format!("{name}\n{}\n", metadata.len()));
    if metadata.len() <= LARGEST {
        digest.update(fs::read(path)?);
    }
    Ok(())
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::EnvConfig;
    use serde_json::json;

    fn native(args: serde_json::Value) -> EnvironmentFingerprint {
        let env = EnvConfig { id: "self_prediction".into(), ..EnvConfig::default() };
        let plan = RunPlan::embedded(env, minds_models::TINY_RANDOM, None, 0).unwrap();
        let environment = native::load("self_prediction", args.as_object().unwrap(), 0).unwrap();
        fingerprint(&plan.envs[0], &*environment)
    }

    #[test]
    fn a_native_environment_is_its_rows_and_the_program() {
        let [one, same, more] = [2, 2, 3].map(|shots| native(json!({"shots": shots})));
        assert_eq!(one, same);
        assert_ne!(one.data, more.data, "its prompts have changed");
        assert_eq!((one.rows, one.code.as_deref()), (1317, Some(VERSION)));
    }

    #[test]
    fn a_package_is_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("package");
        fs::create_dir_all(package.join("__pycache__")).unwrap();
        let id = package.to_str().unwrap();
        let mut seen = Vec::new();
        for (file, text, changes) in [
            ("package.py", "reward = 1", true),
            ("package.py", "reward = 2", true),
            ("rows.jsonl", "{}", true),
            ("__pycache__/package.pyc", "x", false),
            (".git", "x", false),
        ] {
            fs::write(package.join(file), text).unwrap();
            let now = code(id).unwrap();
            assert_eq!(seen.last() != Some(&now), changes, "{file}");
            seen.push(now);
        }
        assert_eq!(code("an_installed_module"), None);
    }
}
