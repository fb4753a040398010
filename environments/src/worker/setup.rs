//! The location of the worker's files, the interpreter that runs them, and the variables of a process.
//!
//! A process gets the variables of a list and those that the config names, never all: one outside the list cannot
//! leak, least of all the service's key. The probe for a module gets the same
//! variables as the process that imports it, so that both find the same module. On Linux a process could still read
//! this one's variables in `/proc`, so they are hidden.

use super::locate::{ModuleLocation, locate};
use super::options::PythonOptions;
use super::worker_files::WorkerFiles;
use crate::error::EnvError;
use crate::native;
#[cfg(target_os = "linux")]
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;
#[cfg(target_os = "linux")]
use tracing::warn;

/// Source files of the worker, embedded in the binary.
const FILES: [(&str, &str); 11] = [
    ("__init__.py", include_str!("../../python/minds_host/__init__.py")),
    ("randomness.py", include_str!("../../python/minds_host/randomness.py")),
    ("classic.py", include_str!("../../python/minds_host/classic.py")),
    ("client.py", include_str!("../../python/minds_host/client.py")),
    ("verifiers_v1.py", include_str!("../../python/minds_host/verifiers_v1.py")),
    ("verifiers_legacy.py", include_str!("../../python/minds_host/verifiers_legacy.py")),
    ("main.py", include_str!("../../python/minds_host/main.py")),
    ("objects.py", include_str!("../../python/minds_host/objects.py")),
    ("plain.py", include_str!("../../python/minds_host/plain.py")),
    ("sdk.py", include_str!("../../python/minds_host/sdk.py")),
    ("wire.py", include_str!("../../python/minds_host/wire.py")),
];

/// The worker's folder leaves the import path before user code is found.
const START: &str = "import sys; sys.path.insert(0, sys.argv[1]); from minds_host import main; \
                     sys.path.remove(sys.argv[1]); main.main()";

/// Exits with 0 if there is a module of this name, without importing it.
const FIND: &str = "import sys; import importlib.util as u; \
                    sys.exit(u.find_spec(sys.argv[1].split('.')[0]) is None)";

/// Variables that every process gets if they are set.
const PASSED: [&str; 31] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "NLTK_DATA",
];

/// Settings that turn off progress bars, limit libraries to fewer cores, and fix the order of sets of texts.
const SET: [(&str, &str); 8] = [
    ("PYTHONHASHSEED", "0"),
    ("PYTHONUNBUFFERED", "1"),
    ("PYTHONIOENCODING", "utf-8"),
    ("TQDM_DISABLE", "1"),
    ("HF_DATASETS_DISABLE_PROGRESS_BARS", "1"),
    ("TOKENIZERS_PARALLELISM", "false"),
    ("OMP_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
];

/// Variables that list hosts without a proxy, under both names that libraries read.
const SPARED: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// The module to load, and the interpreter and variables for it.
#[derive(Debug)]
pub(super) struct WorkerSetup {
    folder: PathBuf,
    interpreter: PathBuf,
    /// A folder that must be importable, if the environment was named by its path.
    pub(super) path: Option<String>,
    /// Importable name of the module.
    pub(super) module: String,
    variables: WorkerVariables,
}

/// Keeps other processes of the same user, unless it is root, from reading this one's variables and memory, which hold
/// the service's key. It prevents core dumps, and debuggers need root. Removing the variables instead is unsafe while
/// other threads may read them.
pub fn hide_own_variables() {
    #[cfg(target_os = "linux")]
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        warn!(%error, "Python environments may read the variables of this process");
    }
}

impl WorkerSetup {
    /// Writes the worker's files and finds module and interpreter. The files exist as long as the folder is held.
    pub(super) fn new(options: &PythonOptions) -> Result<(Self, WorkerFiles), EnvError> {
        hide_own_variables();
        let failed = |error: std::io::Error| EnvError::WorkerSetup(error.to_string());
        let folder = WorkerFiles::create().map_err(failed)?;
        let package = folder.path().join("minds_host");
        std::fs::create_dir(&package).map_err(failed)?;
        for (name, text) in FILES {
            std::fs::write(package.join(name), text).map_err(failed)?;
        }
        let ModuleLocation { path, module, home } = locate(&options.id)?;
        let variables = variables(&options.pass_env, of_this_process);
        let interpreter = options.python.clone().unwrap_or_else(|| interpreter(home.as_deref()));
        Ok((Self { folder: folder.path().to_owned(), interpreter, path, module, variables }, folder))
    }

    /// Why a process cannot be started.
    pub(super) fn cannot_start(&self, error: &std::io::Error) -> String {
        cannot_start(&self.interpreter, error)
    }

    /// The interpreter, for messages.
    pub(super) fn interpreter(&self) -> String {
        self.interpreter.display().to_string()
    }

    /// A command that starts a process in its own group.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.interpreter);
        command
            .args(["-u", "-c", START])
            .arg(&self.folder)
            .env_clear()
            .envs(&self.variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        command
    }
}

fn of_this_process(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

type WorkerVariables = BTreeMap<String, OsString>;

/// Selects the variables of a process from those that `read` finds.
fn variables(pass_env: &[String], read: impl Fn(&str) -> Option<OsString>) -> WorkerVariables {
    let names = PASSED.into_iter().chain(pass_env.iter().map(String::as_str));
    let passed = names.filter_map(|name| Some((name.to_owned(), read(name)?)));
    let mut variables: WorkerVariables =
        passed.chain(SET.map(|(name, value)| (name.to_owned(), value.into()))).collect();
    spare_this_machine(&mut variables);
    variables
}

/// Excludes this machine from a configured proxy: processes reach the policy's endpoint on it.
fn spare_this_machine(variables: &mut WorkerVariables) {
    if !variables
        .keys()
        .any(|name| matches!(&*name.to_lowercase(), "http_proxy" | "https_proxy" | "all_proxy"))
    {
        return;
    }
    let written: String =
        SPARED.iter().filter_map(|name| variables.get(*name)?.to_str()).collect::<Vec<_>>().join(",");
    let mut hosts: Vec<&str> = Vec::new();
    for host in written.split(',').map(str::trim).chain(["127.0.0.1", "localhost"]) {
        if !host.is_empty() && !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    // Libraries understand `*` only if it stands alone.
    let hosts = if hosts.contains(&"*") { "*".to_owned() } else { hosts.join(",") };
    variables.extend(SPARED.map(|name| (name.to_owned(), hosts.clone().into())));
}

/// Looks for an environment's package and runs none of its code: a path must hold one, and the interpreter must find a
/// module of that name.
///
/// # Errors
/// There is no such package, or the interpreter cannot be started.
pub fn find_package(options: &PythonOptions) -> Result<(), EnvError> {
    let ModuleLocation { path, module, home } = locate(&options.id)?;
    if path.is_some() {
        return Ok(());
    }
    let interpreter = options.python.clone().unwrap_or_else(|| interpreter(home.as_deref()));
    let name = interpreter.display().to_string();
    let asked = std::process::Command::new(&interpreter)
        .args(["-c", FIND, &module])
        .env_clear()
        .envs(variables(&options.pass_env, of_this_process))
        .output();
    match asked {
        Ok(answer) if answer.status.success() => Ok(()),
        Ok(_) => Err(native::unknown(&options.id, Some(name))),
        Err(error) => {
            Err(EnvError::Python { id: options.id.clone(), why: cannot_start(&interpreter, &error) })
        }
    }
}

/// Why an interpreter cannot be started, with the command that makes the missing virtual environment.
fn cannot_start(interpreter: &Path, error: &std::io::Error) -> String {
    let why = format!("`{}` cannot be started: {error}", interpreter.display());
    let venv = interpreter.parent().filter(|folder| folder.ends_with("bin")).and_then(Path::parent);
    match venv.filter(|venv| !interpreter.exists() && *venv != Path::new("/usr")) {
        Some(venv) => {
            let venv = venv.display();
            format!(
                "{why}; `python3 -m venv {venv}` makes it, `{venv}/bin/pip install …` adds what the environment imports"
            )
        }
        None => why,
    }
}

/// The interpreter of a package: the virtual environment in its folder `home`, else the one of the working directory, else
/// `python3`.
#[must_use]
pub fn interpreter(home: Option<&Path>) -> PathBuf {
    let folders = home.into_iter().chain([Path::new(".")]);
    let mut own = folders.map(|folder| folder.join(".venv/bin/python"));
    own.find(|python| python.is_file()).unwrap_or_else(|| "python3".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(set: &[(&str, &str)], pass_env: &[&str]) -> WorkerVariables {
        let pass_env: Vec<String> = pass_env.iter().map(|name| (*name).to_owned()).collect();
        variables(&pass_env, |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn requests_to_this_machine_bypass_proxies_and_other_exceptions_stay() {
        for (set, expected) in [
            (&[("http_proxy", "http://proxy:3128")][..], Some("127.0.0.1,localhost")),
            (
                &[("HTTPS_PROXY", "x"), ("NO_PROXY", "a.org, localhost"), ("no_proxy", "b.org,a.org")],
                Some("a.org,localhost,b.org,127.0.0.1"),
            ),
            (&[("HTTP_PROXY", "x"), ("no_proxy", "*")], Some("*")),
            (&[("PATH", "/bin")], None),
        ] {
            let found = given(set, &[]);
            for name in SPARED {
                assert_eq!(found.get(name).and_then(|hosts| hosts.to_str()), expected, "{set:?}");
            }
        }
        let handed_on = given(&[("all_proxy", "socks5://proxy")], &["all_proxy"]);
        assert_eq!(handed_on["no_proxy"], "127.0.0.1,localhost");
    }

    #[test]
    fn a_process_is_given_what_is_listed_or_named_and_nothing_else() {
        let set = [("PYTHONPATH", "/a"), ("JUDGE_KEY", "k"), ("TINKER_API_KEY", "t")];
        let found = given(&set, &["JUDGE_KEY"]);
        assert_eq!(
            (found.get("PYTHONPATH"), found.get("JUDGE_KEY")),
            (Some(&"/a".into()), Some(&"k".into()))
        );
        assert_eq!(found.get("TINKER_API_KEY"), None);
    }
}
