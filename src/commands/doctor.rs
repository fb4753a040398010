//! `minds-actors doctor`: what is missing on this machine, and how to get it.

use super::print_line;
use crate::assemble;
use crate::check::{self, machine};
use crate::cli;
use crate::config::metrics::PORT;
use crate::config::plan::RunPlan;
use crate::config::{ProcessVariables, environments::EnvPlan};
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::tracker::Tracker;
use crate::tracking;
use anyhow::anyhow;
use indicatif::HumanBytes;
use minds_environments::native;
use minds_models::{KNOWN_MODELS, ModelAvailability, ModelCache};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

/// Free disk in bytes below which a warning is shown: checkpoints and rollouts of a run need space.
const LITTLE_DISK: u64 = 2 << 30;

/// Result of one check of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FindingStatus {
    /// The requirement is met.
    Ok,
    /// Not optimal, but sufficient for what is needed.
    Warn,
    /// Required, but not present.
    Missing,
}

/// The finding of one check.
struct DoctorFinding {
    status: FindingStatus,
    what: &'static str,
    /// The result, and how to install what is missing.
    message: String,
}

/// Runs the command.
///
/// # Errors
/// Something that the config needs is missing (1), or the config is wrong (2).
pub fn run(command: &cli::DoctorArgs) -> Result<(), CommandError> {
    let plan = command.config.clone().map(|config| {
        let config =
            cli::RunArgs::for_config(config, command.set.clone(), None).at_stage(command.stage.clone());
        RunPlan::load(&config, &ProcessVariables::current())
    });
    let plan = plan.transpose().or_exit(ProcessExit::Config)?;
    let mut findings = vec![version(), cores(), memory(plan.as_ref()), disk(plan.as_ref())];
    findings.push(model(plan.as_ref()));
    findings.extend(python(plan.as_ref()));
    if let Some(plan) = &plan {
        findings.extend(environments(plan));
        findings.extend(trackers(plan));
        findings.extend(service(plan));
        findings.extend(broker(plan));
    }
    findings.push(port("serve", SocketAddr::from(([127, 0, 0, 1], 8017)), "another with --addr"));
    let metrics =
        plan.as_ref().map_or(Some(SocketAddr::from(([127, 0, 0, 1], PORT))), |plan| plan.metrics.addr);
    findings.extend(metrics.map(|addr| port("dashboard", addr, "another in `metrics.addr`")));
    for DoctorFinding { status, what, message } in &findings {
        let status = match status {
            FindingStatus::Ok => "ok",
            FindingStatus::Warn => "warn",
            FindingStatus::Missing => "missing",
        };
        print_line!("{status:<8} {what:<12} {message}");
    }
    match findings.iter().filter(|finding| finding.status == FindingStatus::Missing).count() {
        0 => Ok(()),
        n => Err(anyhow!("{n} of {} things are missing", findings.len())).or_exit(ProcessExit::Failed),
    }
}

fn finding(status: FindingStatus, what: &'static str, message: impl Into<String>) -> DoctorFinding {
    DoctorFinding { status, what, message: message.into() }
}

fn version() -> DoctorFinding {
    finding(FindingStatus::Ok, "version", cli::VERSION)
}

fn cores() -> DoctorFinding {
    finding(FindingStatus::Ok, "cores", machine::cores().to_string())
}

/// Checks the memory for the model and its training, where the need is known.
fn memory(plan: Option<&RunPlan>) -> DoctorFinding {
    let needed = plan.and_then(needed_memory);
    match (machine::memory(), needed) {
        (None, _) => finding(FindingStatus::Warn, "memory", "the free memory is unknown on this system"),
        (Some(free), Some(needed)) if free < needed => {
            let less =
                "use a smaller model, lower engine.kv_cache_mib, or raise the container's memory limit";
            let message = format!("{} free, about {} needed: {less}", HumanBytes(free), HumanBytes(needed));
            finding(FindingStatus::Missing, "memory", message)
        }
        (Some(free), needed) => {
            let needed = needed.map(|needed| format!(", about {} needed", HumanBytes(needed)));
            finding(
                FindingStatus::Ok,
                "memory",
                format!("{} free{}", HumanBytes(free), needed.unwrap_or_default()),
            )
        }
    }
}

fn needed_memory(plan: &RunPlan) -> Option<u64> {
    let Ok(ModelAvailability::Complete(source)) =
        minds_models::model_availability(&plan.base_model, &ModelCache::from_env())
    else {
        return None;
    };
    let files = source.open().ok()??;
    let shares = check::memory(plan, files.architecture(), false);
    Some(check::total_bytes(&shares))
}

fn disk(plan: Option<&RunPlan>) -> DoctorFinding {
    let folder = plan.and_then(|plan| plan.output_dir.clone()).unwrap_or_else(|| "outputs".into());
    match machine::disk(&folder) {
        Ok(free) if free < LITTLE_DISK => {
            let message =
                format!("{} free for {}: free some, or set output_dir", HumanBytes(free), folder.display());
            finding(FindingStatus::Warn, "disk", message)
        }
        Ok(free) => {
            finding(FindingStatus::Ok, "disk", format!("{} free for {}", HumanBytes(free), folder.display()))
        }
        Err(error) => finding(
            FindingStatus::Warn,
            "disk",
            format!("the free space of {} is unknown: {error}", folder.display()),
        ),
    }
}

/// Checks the model: the embedded engine needs all of it; for a server the tokenizer suffices.
fn model(plan: Option<&RunPlan>) -> DoctorFinding {
    let name = plan.map_or(KNOWN_MODELS[0].name, |plan| &plan.base_model);
    let is_embedded = plan.is_none_or(|plan| plan.service.engine().is_some());
    // Without a config nothing is needed yet.
    let absent = if plan.is_some() { FindingStatus::Missing } else { FindingStatus::Warn };
    let look = || {
        let cache = ModelCache::from_env();
        let tokenizer = minds_models::local_tokenizer(name, &cache)?;
        Ok::<_, minds_models::ModelError>((
            minds_models::model_availability(name, &cache)?,
            tokenizer.is_some(),
        ))
    };
    match look() {
        Err(error) => finding(FindingStatus::Missing, "model", error.to_string()),
        Ok((ModelAvailability::Complete(_), _)) => {
            finding(FindingStatus::Ok, "model", format!("{name} is at hand"))
        }
        Ok((ModelAvailability::Absent { .. }, true)) if !is_embedded => {
            finding(FindingStatus::Ok, "model", format!("the tokenizer of {name} is on this machine"))
        }
        Ok((ModelAvailability::Absent { .. }, _)) if !is_embedded => {
            let message =
                format!("the tokenizer of {name} is not on this machine: a run fetches it from the hub");
            finding(FindingStatus::Warn, "model", message)
        }
        Ok((ModelAvailability::Absent { name, .. }, _)) => finding(
            absent,
            "model",
            format!("{name} is not on this machine: `minds-actors models fetch {name}`"),
        ),
    }
}

/// Checks for Python 3 with `venv`: Python environments run on it, and pip fetches models where the hub
/// is unreachable.
fn python(plan: Option<&RunPlan>) -> Vec<DoctorFinding> {
    let is_needed = plan.is_some_and(|plan| pythons(plan).next().is_some());
    let absent = if is_needed { FindingStatus::Missing } else { FindingStatus::Warn };
    let says = |arguments: &[&str]| {
        let output = Command::new("python3").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(version) = says(&["--version"]) else {
        return vec![finding(
            absent,
            "python",
            "there is no python3: on Debian or Ubuntu, `apt-get install python3`",
        )];
    };
    let mut findings = vec![finding(FindingStatus::Ok, "python", version)];
    for (what, arguments, package) in [
        ("python venv", &["-c", "import ensurepip, venv"][..], "python3-venv"),
        ("python pip", &["-m", "pip", "--version"], "python3-pip"),
    ] {
        findings.push(match says(arguments) {
            Some(_) => finding(FindingStatus::Ok, what, "is there"),
            None => finding(
                FindingStatus::Warn,
                what,
                format!("is missing: on Debian or Ubuntu, `apt-get install {package}`"),
            ),
        });
    }
    findings
}

fn pythons(plan: &RunPlan) -> impl Iterator<Item = &EnvPlan> {
    plan.envs.iter().filter(|env| !native::is_native(&env.options.id))
}

fn environments(plan: &RunPlan) -> Vec<DoctorFinding> {
    plan.envs
        .iter()
        .map(|env| {
            let found = match assemble::native(plan, env).or_exit(ProcessExit::Config) {
                Ok(Some(_)) => Ok(format!("{} is installed", env.name)),
                Ok(None) => check::try_package(plan, env),
                Err(error) => Err(error),
            };
            match found {
                Ok(message) => finding(FindingStatus::Ok, "environment", message),
                Err(error) => finding(FindingStatus::Missing, "environment", error.to_string()),
            }
        })
        .collect()
}

/// Checks the packages of the experiment trackers.
fn trackers(plan: &RunPlan) -> Vec<DoctorFinding> {
    let python = plan.tracking.python.display();
    let found = |tracker: &Tracker| match tracking::import_packages(&plan.tracking.only(*tracker)) {
        Ok(imported) => finding(
            FindingStatus::Ok,
            "tracker",
            format!("{} can be imported by `{python}`", imported.join(", ")),
        ),
        Err(problem) => finding(FindingStatus::Missing, "tracker", format!("log.to {problem}")),
    };
    plan.tracking.to.iter().map(found).collect()
}

/// Checks the key, and a server that accepts it.
fn service(plan: &RunPlan) -> Option<DoctorFinding> {
    let reached =
        assemble::check_key(plan).or_exit(ProcessExit::Config).and_then(|()| assemble::probe_service(plan));
    match reached {
        Ok(None) => None,
        Ok(Some((info, _))) => {
            let message = format!("{} serves {}", plan.service.name(), info.base_model);
            Some(finding(FindingStatus::Ok, "service", message))
        }
        Err(fault) => Some(finding(FindingStatus::Missing, "service", fault.to_string())),
    }
}

/// Checks the broker, if rewards are computed by workers.
fn broker(plan: &RunPlan) -> Option<DoctorFinding> {
    match assemble::probe_broker(plan) {
        Ok(found) => found.map(|found| finding(FindingStatus::Ok, "broker", found)),
        Err(fault) => Some(finding(FindingStatus::Missing, "broker", fault.to_string())),
    }
}

/// Checks whether a server could listen at an address.
fn port(what: &'static str, address: SocketAddr, other: &str) -> DoctorFinding {
    match TcpListener::bind(address) {
        Ok(_) => finding(FindingStatus::Ok, what, format!("{address} is free")),
        Err(error) => {
            finding(FindingStatus::Warn, what, format!("{address} cannot be bound: {error}; name {other}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_reported_with_advice() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let found = port("serve", taken.local_addr().unwrap(), "another with --addr");
        assert_eq!(found.status, FindingStatus::Warn);
        assert!(found.message.contains("--addr"), "{}", found.message);
        drop(taken);
        assert_eq!(port("serve", SocketAddr::from(([127, 0, 0, 1], 0)), "another").status, FindingStatus::Ok);
    }
}
