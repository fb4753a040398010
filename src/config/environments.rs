//! The environments of a config: their names, their shares, and how Python packages are run.

use super::choice::chosen;
use super::error::{KeyProblem, at_most, ensure_number};
use super::file::{ConfigFile, EnvConfig};
use super::pipeline;
use super::supervised::{self, DemonstrationPlan};
use minds_environments::worker::PythonOptions;
use minds_observe::dashboard::EnvironmentShare;
use minds_tinker::client::{API_KEY_ENV, CREDENTIAL_COMMAND_ENV};
use std::num::{NonZeroU64, NonZeroUsize};
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
    /// Steps between two evaluations of it, if it has a number of its own.
    pub evaluate_every: Option<NonZeroU64>,
    /// The environment's id, its arguments, and how to run it if it is a Python package.
    pub options: PythonOptions,
    /// Its table as the config writes it.
    pub written: EnvConfig,
    /// A key that only Python packages accept, if the config sets one.
    pub only_python: Option<&'static str>,
    /// Conversations, if it consists of those: then `options` only name it.
    pub demonstrations: Option<DemonstrationPlan>,
}

impl EnvPlan {
    /// Its name and weight, as they are shown.
    #[must_use]
    pub fn share(&self) -> EnvironmentShare {
        EnvironmentShare { name: self.name.clone(), weight: self.weight }
    }
}

/// Most processes, and most rollouts in one of them.
const MOST: NonZeroUsize = NonZeroUsize::new(1024).expect("1024 is not 0");
/// Most seconds that anything may take: thirty days.
pub(super) const LONGEST_S: u64 = 30 * 24 * 3600;

/// The environments of a config.
pub(super) fn environments(file: &ConfigFile) -> Result<Vec<EnvPlan>, KeyProblem> {
    let mut plans: Vec<EnvPlan> = supervised::environments(file)?;
    for (key, env) in tables(file)? {
        let mut plan = environment(file, key, env)?;
        if file.sft.is_some() {
            plan.weight = 0.0;
        }
        if plans.iter().any(|other| other.name == plan.name) {
            let problem = format!(
                "is \"{}\" a second time: give each of them a `name` of its own, under which its metrics go",
                plan.name
            );
            return Err(KeyProblem::new(format!("{}.name", plan.key), problem));
        }
        plans.push(plan);
    }
    if plans.iter().all(|plan| plan.weight == 0.0) {
        let problem = "is 0, and so is every other: nothing would be trained";
        return Err(KeyProblem::new("envs[0].weight", problem));
    }
    Ok(plans)
}

/// The tables of environments, each with its key.
fn tables(file: &ConfigFile) -> Result<Vec<(String, &EnvConfig)>, KeyProblem> {
    match (&file.envs[..], &file.env) {
        ([_, ..], Some(_)) => {
            Err(KeyProblem::new("env", "cannot be combined with [[envs]]: use one of them"))
        }
        ([], None) if file.sft.is_some() => Ok(Vec::new()),
        ([], None) => Err(KeyProblem::new("env.id", "is missing: name the environment to train on")),
        ([], Some(env)) if env.weight.is_some() => {
            let problem = "has a meaning only in a mixture: write [[envs]], or leave it out";
            Err(KeyProblem::new("env.weight", problem))
        }
        ([], Some(env)) => Ok(vec![("env".into(), env)]),
        (envs, None) => Ok(envs.iter().enumerate().map(|(i, env)| (format!("envs[{i}]"), env)).collect()),
    }
}

fn environment(file: &ConfigFile, key: String, env: &EnvConfig) -> Result<EnvPlan, KeyProblem> {
    let short = env.id.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let short = short.strip_suffix(".py").unwrap_or(short);
    let name = env.name.clone().unwrap_or_else(|| short.to_owned());
    if name.is_empty() || name.chars().count() > MOST_NAME || name.chars().any(char::is_control) {
        let problem = format!(
            "is {name:?}: as a prefix of metric names it must have 1 to {MOST_NAME} characters and no control characters"
        );
        return Err(KeyProblem::new(format!("{key}.name"), problem));
    }
    if name == "all" {
        let problem = "is \"all\", under which metrics tell of all environments together";
        return Err(KeyProblem::new(format!("{key}.name"), problem));
    }
    let weight = env.weight.unwrap_or(1.0);
    let holds = weight.is_finite() && weight >= 0.0;
    ensure_number(format!("{key}.weight"), weight, holds, "be finite and not negative")?;
    let evaluate_every = env.eval_every;
    if evaluate_every.is_some() && weight > 0.0 && file.sft.is_none() {
        let problem = "has no effect on an environment that is trained: only those of weight 0 are evaluated";
        return Err(KeyProblem::new(format!("{key}.eval_every"), problem));
    }
    if evaluate_every.is_some() && pipeline::eval_every(file) == 0 {
        let problem = "has no effect without trainer.eval_every, from which it differs";
        return Err(KeyProblem::new(format!("{key}.eval_every"), problem));
    }
    Ok(EnvPlan {
        options: options(file, &key, env)?,
        only_python: only_python(env),
        demonstrations: None,
        evaluate_every,
        written: env.clone(),
        key,
        name,
        weight,
    })
}

/// The first key of the table that only Python packages accept.
fn only_python(env: &EnvConfig) -> Option<&'static str> {
    let keys = [
        ("python", env.python.is_some()),
        ("workers", env.workers.is_some()),
        ("rollouts_per_worker", env.rollouts_per_worker.is_some()),
        ("load_timeout_s", env.load_timeout_s.is_some()),
        ("rollout_timeout_s", env.rollout_timeout_s.is_some()),
        ("pass_env", env.pass_env.is_some()),
        ("on_bad_reward", env.on_bad_reward.is_some()),
    ];
    keys.into_iter().find_map(|(name, is_written)| is_written.then_some(name))
}

fn options(file: &ConfigFile, table: &str, env: &EnvConfig) -> Result<PythonOptions, KeyProblem> {
    let count = |key: &str, count: NonZeroUsize| at_most(format!("{table}.{key}"), count, MOST);
    let time = |key: &str, seconds: Option<NonZeroU64>, usual: Duration| match seconds {
        Some(seconds) => at_most(format!("{table}.{key}"), seconds.get(), LONGEST_S).map(Duration::from_secs),
        None => Ok(usual),
    };
    let pass_env = env.pass_env.clone().unwrap_or_default();
    let keys = [Some(API_KEY_ENV), Some(CREDENTIAL_COMMAND_ENV), file.tinker.api_key_env.as_deref()];
    if let Some(name) = pass_env.iter().find(|name| keys.contains(&Some(name.as_str()))) {
        let problem = format!("names {name}: the service's key is never handed to an environment");
        return Err(KeyProblem::new(format!("{table}.pass_env"), problem));
    }
    let args = serde_json::to_value(&env.args)
        .map_err(|error| KeyProblem::new(format!("{table}.args"), format!("cannot be handed on: {error}")))?;
    let args = args.as_object().cloned().unwrap_or_default();
    let usual = PythonOptions::new(env.id.clone(), args, file.trainer.seed.unwrap_or(0));
    let rollouts_per_worker = env.rollouts_per_worker.unwrap_or(usual.rollouts_per_worker);
    Ok(PythonOptions {
        python: env.python.clone(),
        workers: env.workers.map(|workers| count("workers", workers)).transpose()?,
        rollouts_per_worker: count("rollouts_per_worker", rollouts_per_worker)?,
        load_timeout: time("load_timeout_s", env.load_timeout_s, usual.load_timeout)?,
        rollout_timeout: time("rollout_timeout_s", env.rollout_timeout_s, usual.rollout_timeout)?,
        pass_env,
        on_bad_reward: chosen(env.on_bad_reward),
        ..usual
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::tests::plan;
    use minds_environments::worker::BadReward;

    fn check(text: &str) -> Result<Vec<EnvPlan>, String> {
        let text = format!("model.base_model = \"tiny-random\"\n{text}");
        plan(&text, &[], &[]).map(|plan| plan.envs).map_err(|error| error.to_string())
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
            ("[env]\nid = \"a\"\nworkers = 0", "`env.workers` is 0"),
            ("[env]\nid = \"a\"\nweight = 1", "`env.weight` has a meaning only in a mixture"),
            (
                "[[envs]]\nid = \"a\"\non_bad_reward = \"one\"",
                "`envs[0].on_bad_reward` is \"one\"; it must be one of: fail, zero",
            ),
            ("[env]\nid = \"a\"\npass_env = [\"TINKER_API_KEY\"]", "`env.pass_env` names TINKER_API_KEY"),
            (
                "[env]\nid = \"a\"\npass_env = [\"TINKER_CREDENTIAL_CMD\"]",
                "`env.pass_env` names TINKER_CREDENTIAL_CMD",
            ),
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
