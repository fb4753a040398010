//! The environments of a config: their names, their shares, and how Python packages are run.

use super::choose;
use super::file::{ConfigFile, EnvConfig};
use minds_environments::worker::{BadReward, PythonOptions};
use minds_tinker::client::API_KEY_ENV;
use std::num::NonZeroUsize;
use std::time::Duration;

/// Most characters of an environment's name.
const MOST_NAME: usize = 100;

/// Resolved settings of one environment.
#[derive(Clone, Debug)]
pub struct EnvPlan {
    /// Its table in the config, such as `envs[1]`.
    pub key: String,
    /// Name of the environment in metrics.
    pub name: String,
    /// Relative share of the run; 0 for evaluation only.
    pub weight: f64,
    /// The environment's id, its arguments, and how to run it if it is a Python package.
    pub options: PythonOptions,
    /// A key that only Python packages accept, if the config sets one.
    pub only_python: Option<&'static str>,
}

/// Most processes, and most rollouts in one of them.
const MOST: usize = 1024;
/// Most seconds that anything may take: thirty days.
pub(super) const LONGEST_S: u64 = 30 * 24 * 3600;

pub(super) const BAD_REWARDS: &[(&str, BadReward)] = &[("fail", BadReward::Fail), ("zero", BadReward::Zero)];

/// The environments of a config; an error is a key and its problem.
pub(super) fn environments(file: &ConfigFile, seed: u64) -> Result<Vec<EnvPlan>, (String, String)> {
    let all: Vec<EnvConfig> = match (&file.envs[..], &file.env) {
        ([_, ..], Some(_)) => {
            let problem = "cannot be combined with [[envs]]: use one of them".into();
            return Err(("env".into(), problem));
        }
        ([], None) => return Err(("env.id".into(), "is missing: name the environment to play".into())),
        ([], Some(env)) if env.weight.is_some() => {
            let problem = "has a meaning only in a mixture: write [[envs]], or leave it out".into();
            return Err(("env.weight".into(), problem));
        }
        ([], Some(env)) => vec![env.clone()],
        (envs, _) => envs.to_vec(),
    };
    let mut plans: Vec<EnvPlan> = Vec::new();
    for (i, env) in all.into_iter().enumerate() {
        let key = if file.envs.is_empty() { "env".to_owned() } else { format!("envs[{i}]") };
        let bad = |name: &str, problem: String| (format!("{key}.{name}"), problem);
        let options = options(file, &env, seed).map_err(|(name, problem)| bad(name, problem))?;
        let only_python = [
            ("python", env.python.is_some()),
            ("workers", env.workers.is_some()),
            ("rollouts_per_worker", env.rollouts_per_worker.is_some()),
            ("load_timeout_s", env.load_timeout_s.is_some()),
            ("rollout_timeout_s", env.rollout_timeout_s.is_some()),
            ("pass_env", env.pass_env.is_some()),
            ("on_bad_reward", env.on_bad_reward.is_some()),
        ];
        let only_python = only_python.into_iter().find_map(|(name, written)| written.then_some(name));
        let short = env.id.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let short = short.strip_suffix(".py").unwrap_or(short).to_owned();
        let weight = env.weight.unwrap_or(1.0);
        let name = env.name.unwrap_or(short);
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(bad("weight", format!("is {weight}, it must be finite and not negative")));
        }
        if name.is_empty() || name.chars().count() > MOST_NAME || name.chars().any(char::is_control) {
            let problem = format!(
                "is {name:?}: as a prefix of metric names it must have 1 to {MOST_NAME} characters and no control characters"
            );
            return Err(bad("name", problem));
        }
        if name == "all" {
            let problem = "is \"all\", under which metrics tell of all environments together";
            return Err(bad("name", problem.into()));
        }
        if plans.iter().any(|other| other.name == name) {
            let problem = format!(
                "is \"{name}\" a second time: give each of them a `name` of its own, under which its metrics go"
            );
            return Err(bad("name", problem));
        }
        plans.push(EnvPlan { key, name, weight, options, only_python });
    }
    if plans.iter().all(|plan| plan.weight == 0.0) {
        return Err((
            "envs[0].weight".into(),
            "is 0, and so is every other: nothing would be trained".into(),
        ));
    }
    Ok(plans)
}

fn options(file: &ConfigFile, env: &EnvConfig, seed: u64) -> Result<PythonOptions, (&'static str, String)> {
    let zero = || "is 0, it must be at least 1".to_owned();
    let count = |key: &'static str, written: Option<usize>| match written.map(NonZeroUsize::new) {
        Some(None) => Err((key, zero())),
        Some(Some(given)) if given.get() > MOST => {
            Err((key, format!("is {given}, it must be at most {MOST}")))
        }
        given => Ok(given.flatten()),
    };
    let seconds = |key: &'static str, written: Option<u64>, usual: Duration| match written {
        Some(0) => Err((key, zero())),
        Some(given) if given > LONGEST_S => Err((key, format!("is {given}, it must be at most {LONGEST_S}"))),
        given => Ok(given.map_or(usual, Duration::from_secs)),
    };
    let pass_env = env.pass_env.clone().unwrap_or_default();
    let keys = [Some(API_KEY_ENV), file.tinker.api_key_env.as_deref()];
    if let Some(key) = pass_env.iter().find(|name| keys.contains(&Some(name.as_str()))) {
        let problem = format!("names {key}: the service's key is never handed to an environment");
        return Err(("pass_env", problem));
    }
    let args = serde_json::to_value(&env.args).map_err(|e| ("args", format!("cannot be handed on: {e}")))?;
    let args = args.as_object().cloned().unwrap_or_default();
    let usual = PythonOptions::new(env.id.clone(), args, seed);
    Ok(PythonOptions {
        python: env.python.clone(),
        workers: count("workers", env.workers)?,
        rollouts_per_worker: count("rollouts_per_worker", env.rollouts_per_worker)?
            .unwrap_or(usual.rollouts_per_worker),
        load_timeout: seconds("load_timeout_s", env.load_timeout_s, usual.load_timeout)?,
        rollout_timeout: seconds("rollout_timeout_s", env.rollout_timeout_s, usual.rollout_timeout)?,
        pass_env,
        on_bad_reward: choose(env.on_bad_reward.as_deref(), BAD_REWARDS)
            .map_err(|problem| ("on_bad_reward", problem))?,
        ..usual
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Vec<EnvPlan>, String> {
        environments(&toml::from_str(text).unwrap(), 0).map_err(|(key, problem)| format!("{key} {problem}"))
    }

    #[test]
    fn keys_of_python_environments_are_decided_and_remembered() {
        let plans = check(
            "[[envs]]\nid = \"./a.py\"\nworkers = 2\nrollout_timeout_s = 5\non_bad_reward = \"zero\"\n[[envs]]\nid = \"b\"",
        );
        let plans = plans.unwrap();
        assert_eq!((&*plans[0].name, plans[0].options.workers), ("a", NonZeroUsize::new(2)));
        assert_eq!(plans[0].options.rollout_timeout, Duration::from_secs(5));
        assert_eq!(
            (plans[0].options.on_bad_reward, plans[1].options.on_bad_reward),
            (BadReward::Zero, BadReward::Fail)
        );
        assert_eq!((plans[0].only_python, plans[1].only_python), (Some("workers"), None));
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_key() {
        for (text, words) in [
            ("[env]\nid = \"a\"\nworkers = 0", "env.workers is 0"),
            ("[env]\nid = \"a\"\nweight = 1", "env.weight has a meaning only in a mixture"),
            (
                "[[envs]]\nid = \"a\"\non_bad_reward = \"one\"",
                "envs[0].on_bad_reward is \"one\", it must be one of: fail, zero",
            ),
            ("[env]\nid = \"a\"\npass_env = [\"TINKER_API_KEY\"]", "env.pass_env names TINKER_API_KEY"),
            (
                "[env]\nid = \"a\"\npass_env = [\"MY_KEY\"]\n[tinker]\napi_key_env = \"MY_KEY\"",
                "the service's key is never handed to an environment",
            ),
        ] {
            let found = check(text).unwrap_err();
            assert!(found.contains(words), "{text}: {found}");
        }
    }
}
