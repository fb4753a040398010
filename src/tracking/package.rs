//! Whether an interpreter has the packages of trackers.

use super::variables;
use crate::config::tracking::TrackingPlan;
use crate::tracker::Tracker;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// Prints the packages that are not found; runs no code of them. A folder without `__init__.py`, such as `wandb` with the
/// files of offline runs, is no package.
const FIND: &str = "import sys, importlib.util as u; sys.path[:] = filter(None, sys.path); \
                    specs = {n: u.find_spec(n) for n in sys.argv[1:]}; \
                    print(*[n for n, s in specs.items() if s is None or s.origin is None])";

/// Imports a package and prints its version.
const IMPORT: &str = "import sys, importlib; sys.path[:] = filter(None, sys.path); \
                      p = importlib.import_module(sys.argv[1]); print(getattr(p, '__version__', ''))";

/// Time limit for finding packages.
const FINDING: Duration = Duration::from_secs(30);
/// Time limit for importing one.
const IMPORTING: Duration = Duration::from_secs(120);

/// Looks for the packages of all trackers, without running code of theirs.
///
/// # Errors
/// The interpreter cannot be started, or one of them is missing; in words that continue "`log.to`".
pub fn find_packages(plan: &TrackingPlan) -> Result<(), String> {
    if plan.to.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = plan.to.iter().map(|tracker| tracker.name()).collect();
    let missing = ask(plan, FIND, &names, FINDING)?;
    if missing.is_empty() { Ok(()) } else { Err(is_missing(plan, &missing)) }
}

/// Imports the packages of all trackers, each in a process of its own; returns their names and versions.
///
/// # Errors
/// One of them is missing, or its import fails; in words that continue "`log.to`".
pub fn import_packages(plan: &TrackingPlan) -> Result<Vec<String>, String> {
    find_packages(plan)?;
    let import = |tracker: &Tracker| {
        let name = tracker.name();
        let version = ask(plan, IMPORT, &[name], IMPORTING)?;
        Ok(format!("{name} {version}").trim_end().to_owned())
    };
    plan.to.iter().map(import).collect()
}

fn is_missing(plan: &TrackingPlan, packages: &str) -> String {
    let python = plan.python.display();
    let verb = if packages.contains(' ') { "are" } else { "is" };
    let listed = packages.replace(' ', ", ");
    format!(
        "names {}, and {listed} {verb} not installed for `{python}`: `{python} -m pip install {packages}`",
        plan.names()
    )
}

/// The last line that the interpreter prints when it runs this code.
fn ask(plan: &TrackingPlan, code: &str, arguments: &[&str], limit: Duration) -> Result<String, String> {
    let python = plan.python.display();
    let names = plan.names();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot be checked: {error}"))?;
    let mut command = Command::new(&plan.python);
    command.args(["-c", code]).args(arguments).env_clear().envs(variables(plan));
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = match runtime.block_on(async { timeout(limit, command.output()).await }) {
        Err(_) => {
            return Err(format!("names {names}, and `{python}` did not answer within {} s", limit.as_secs()));
        }
        Ok(Err(error)) => return Err(format!("names {names}, and `{python}` cannot be started: {error}")),
        Ok(Ok(output)) => output,
    };
    let last = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes).lines().next_back().unwrap_or_default().trim().to_owned()
    };
    match output.status.success() {
        true => Ok(last(&output.stdout)),
        false => Err(format!("names {names}, and its import in `{python}` fails: {}", last(&output.stderr))),
    }
}
