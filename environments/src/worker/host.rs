//! Where the host's files lie, which interpreter runs them, and what a process is given.
//!
//! A process gets the variables of a list and those that the config names, never all: what is not in the list cannot
//! leak, least of all the service's key.

use super::options::PythonOptions;
use crate::error::EnvError;
use crate::registry;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::process::Command;

/// The host, as it is shipped.
const FILES: [(&str, &str); 12] = [
    ("__init__.py", include_str!("../../python/minds_host/__init__.py")),
    ("chance.py", include_str!("../../python/minds_host/chance.py")),
    ("classic.py", include_str!("../../python/minds_host/classic.py")),
    ("client.py", include_str!("../../python/minds_host/client.py")),
    ("codec.py", include_str!("../../python/minds_host/codec.py")),
    ("episodes.py", include_str!("../../python/minds_host/episodes.py")),
    ("legacy.py", include_str!("../../python/minds_host/legacy.py")),
    ("main.py", include_str!("../../python/minds_host/main.py")),
    ("objects.py", include_str!("../../python/minds_host/objects.py")),
    ("plain.py", include_str!("../../python/minds_host/plain.py")),
    ("sdk.py", include_str!("../../python/minds_host/sdk.py")),
    ("wire.py", include_str!("../../python/minds_host/wire.py")),
];

/// The host's folder leaves the path of imports before user code is found.
const START: &str = "import sys; sys.path.insert(0, sys.argv[1]); from minds_host import main; \
                     sys.path.remove(sys.argv[1]); main.main()";

/// Ends with 0 if there is a module of this name; it is not imported.
const FIND: &str = "import sys; sys.path.insert(0, ''); import importlib.util as u; \
                    sys.exit(u.find_spec(sys.argv[1].split('.')[0]) is None)";

/// Variables that every process gets if they are set.
const PASSED: [&str; 27] = [
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

/// Settings that keep libraries from drawing bars and from taking every core, and sets of texts in one order everywhere.
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

/// What is loaded, and by what.
#[derive(Debug)]
pub(super) struct Host {
    folder: PathBuf,
    interpreter: PathBuf,
    /// A folder that must be importable, if the environment was named by its path.
    pub(super) path: Option<String>,
    /// The module.
    pub(super) module: String,
    variables: Vec<(String, String)>,
}

impl Host {
    /// Writes the host's files and finds module and interpreter. The files are there as long as the folder is held.
    pub(super) fn new(options: &PythonOptions) -> Result<(Self, TempDir), EnvError> {
        let failed = |error: std::io::Error| EnvError::Host(error.to_string());
        sweep();
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir().map_err(failed)?;
        let package = folder.path().join("minds_host");
        std::fs::create_dir(&package).map_err(failed)?;
        for (name, text) in FILES {
            std::fs::write(package.join(name), text).map_err(failed)?;
        }
        let (path, module, home) = locate(&options.id)?;
        let variables = PASSED
            .iter()
            .copied()
            .chain(options.pass_env.iter().map(String::as_str))
            .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)))
            .chain(SET.map(|(name, value)| (name.to_owned(), value.to_owned())))
            .collect();
        let interpreter = options.python.clone().unwrap_or_else(|| interpreter(home.as_deref()));
        Ok((Self { folder: folder.path().to_owned(), interpreter, path, module, variables }, folder))
    }

    /// The interpreter, for messages.
    pub(super) fn interpreter(&self) -> String {
        self.interpreter.display().to_string()
    }

    /// A process in a group of its own.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.interpreter);
        command
            .args(["-u", "-c", START])
            .arg(&self.folder)
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        command
    }
}

/// Before the number of the process that holds a folder.
const PREFIX: &str = "minds-host-";

/// Removes what processes left that were killed. Of other users' folders nothing can be removed, and nothing need be.
fn sweep() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

/// Looks for an environment's package and runs none of its code: a path must hold one, and the interpreter must find a
/// module of that name.
///
/// # Errors
/// There is no such package, or the interpreter cannot be started.
pub fn find(options: &PythonOptions) -> Result<(), EnvError> {
    let (path, module, home) = locate(&options.id)?;
    if path.is_some() {
        return Ok(());
    }
    let interpreter = options.python.clone().unwrap_or_else(|| interpreter(home.as_deref()));
    let name = interpreter.display().to_string();
    let asked = std::process::Command::new(&interpreter).args(["-c", FIND, &module]).output();
    match asked {
        Ok(answer) if answer.status.success() => Ok(()),
        Ok(_) => Err(registry::unknown(&options.id, Some(name))),
        Err(error) => {
            let why = format!("`{name}` cannot be started: {error}");
            Err(EnvError::Python { id: options.id.clone(), why })
        }
    }
}

type Located = (Option<String>, String, Option<PathBuf>);

/// The folder to import from, the module, and the environment's own folder.
///
/// An id that is a folder or a file is a path: `x/__init__.py`, `x/x/__init__.py`, `x/src/x/__init__.py`, `x/x.py` or
/// `x.py`. Any other id is the name of an installed module, or of one in the working directory.
fn locate(id: &str) -> Result<Located, EnvError> {
    let folder = Path::new(id);
    if !is_path(id) {
        return Ok((None, module_name(id), None));
    }
    let folder = folder.canonicalize().map_err(|_| EnvError::NoFolder { path: id.into() })?;
    let name = module_name(&folder.file_stem().unwrap_or_default().to_string_lossy());
    let text = |path: &Path| Some(path.display().to_string());
    if folder.is_file() {
        let home = folder.parent().unwrap_or(Path::new("/")).to_owned();
        return Ok((text(&home), name, Some(home)));
    }
    for root in [folder.clone(), folder.join("src")] {
        if root.join(&name).join("__init__.py").is_file() || root.join(format!("{name}.py")).is_file() {
            return Ok((text(&root), name, Some(folder)));
        }
    }
    if folder.join("__init__.py").is_file() {
        return Ok((folder.parent().and_then(text), name, Some(folder)));
    }
    Err(EnvError::NoPackage { path: id.into(), name })
}

/// Whether an id names a place rather than a module.
pub fn is_path(id: &str) -> bool {
    id.contains('/') || id.starts_with('.') || id.ends_with(".py")
}

fn module_name(id: &str) -> String {
    id.replace('-', "_")
}

/// The environment's own virtual environment, else the one of the working directory, else `python3`.
fn interpreter(home: Option<&Path>) -> PathBuf {
    let folders = home.into_iter().chain([Path::new(".")]);
    let mut own = folders.map(|folder| folder.join(".venv/bin/python"));
    own.find(|python| python.is_file()).unwrap_or_else(|| "python3".into())
}
