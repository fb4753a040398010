//! The registry of native environments: by id, which may be written as the path of its folder; only the last part of
//! it counts.
//!
//! Every call of [`load`] makes an environment of its own. Nothing is cached and nothing is global, so two components
//! of a run cannot get each other's data. An environment is immutable once loaded, and what it asks of an
//! [`Oracle`](minds_core::environment::Oracle) depends on the item alone, so that a group asks it once.

pub mod dataset;
pub mod entropy_intuition;
pub mod ghost_trace;
pub mod gradient_intuition;
pub mod gradient_prophet;
pub mod number_guessing;
pub mod plain_letters;
pub mod self_prediction;
pub mod target_number;

use crate::args::{Arg, ArgKind};
use crate::error::{EnvError, nearest};
use minds_core::environment::{Environment, ScoringContext};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// Describes an environment that is not loaded yet.
#[derive(Clone, Copy, Debug)]
pub struct EnvInfo {
    /// The id that configs use.
    pub id: &'static str,
    /// One-line description of the environment.
    pub about: &'static str,
    /// Arguments that the environment accepts.
    pub args: &'static [Arg],
    /// Whether its rewards query the model, through an [`Oracle`](minds_core::environment::Oracle).
    pub queries_model: bool,
    pub(crate) load: Loader,
}

impl EnvInfo {
    /// Whether the environment cannot be loaded without arguments.
    #[must_use]
    pub fn requires_args(&self) -> bool {
        self.args.iter().any(|arg| arg.kind == ArgKind::RequiredText)
    }
}

pub(crate) type Loader = fn(&Map<String, Value>, u64) -> Result<Arc<dyn Environment>, EnvError>;

const ENVIRONMENTS: &[EnvInfo] = &[
    dataset::INFO,
    entropy_intuition::INFO,
    ghost_trace::INFO,
    gradient_intuition::INFO,
    gradient_prophet::INFO,
    number_guessing::INFO,
    plain_letters::INFO,
    self_prediction::INFO,
    target_number::INFO,
];

/// Every environment, with its arguments.
#[must_use]
pub fn list() -> &'static [EnvInfo] {
    ENVIRONMENTS
}

/// The environment of this id, with these arguments. `seed` orders its data where the order is free.
///
/// # Errors
/// The id is unknown, or an argument is unknown, wrong or without effect.
pub fn load(id: &str, args: &Map<String, Value>, seed: u64) -> Result<Arc<dyn Environment>, EnvError> {
    match find(id) {
        Some(info) => (info.load)(args, seed),
        None => Err(unknown(id, None)),
    }
}

/// Whether an id is one of these. One that is the path of something that exists is not: that is a Python package.
#[must_use]
pub fn is_native(id: &str) -> bool {
    find(id).is_some() && !(is_path(id) && Path::new(id).exists())
}

/// Whether an id names a place rather than a module.
#[must_use]
pub fn is_path(id: &str) -> bool {
    id.contains('/') || id.starts_with('.') || id.ends_with(".py")
}

fn find(id: &str) -> Option<&'static EnvInfo> {
    let name = short(id);
    ENVIRONMENTS.iter().find(|info| info.id == name)
}

fn short(id: &str) -> &str {
    id.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

pub(crate) fn unknown(id: &str, interpreter: Option<String>) -> EnvError {
    let ids = || ENVIRONMENTS.iter().map(|info| info.id);
    let known = ids().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ");
    EnvError::Unknown { id: id.into(), known, nearest: nearest(short(id), ids()), interpreter }
}

/// The last answer, if the policy ended its turn properly. An answer that was cut off, or that continues after its
/// stop, is not a whole answer and cannot be valid.
fn whole_answer<'a>(scene: &ScoringContext<'a>) -> Option<&'a str> {
    scene.rollout.turns.last().filter(|turn| turn.complete).map(|turn| turn.text.as_str())
}

/// 1 for yes, 0 for no, as metrics report it.
fn flag(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_may_be_the_path_of_a_folder() {
        for id in [
            "gradient_prophet",
            "./environments/gradient_prophet",
            "environments/gradient_prophet",
            "./environments/gradient_prophet/",
        ] {
            assert_eq!(load(id, &Map::new(), 0).expect(id).id(), "gradient_prophet");
        }
    }

    #[test]
    fn an_unknown_id_is_an_error_that_lists_the_known_ones() {
        let error = |id| load(id, &Map::new(), 0).err().expect("unknown").to_string();
        let known: Vec<String> = list().iter().map(|info| format!("`{}`", info.id)).collect();
        assert_eq!(
            error("./environments/eval_scheming"),
            format!(
                "there is no environment `./environments/eval_scheming`; this version has {}",
                known.join(", ")
            )
        );
        assert!(error("gradient-prophet").contains("did you mean `gradient_prophet`?"));
        assert!(error("").contains("there is no environment ``"));
    }

    #[test]
    fn every_environment_loads_with_the_defaults_of_its_table() {
        for info in list().iter().filter(|info| !info.requires_args()) {
            let defaults: Map<String, Value> = info
                .args
                .iter()
                .filter(|arg| {
                    arg.only_with.is_none_or(|(other, word)| {
                        info.args.iter().any(|a| {
                            a.name == other && a.kind.default().to_string().trim_matches('"') == word
                        })
                    })
                })
                .map(|arg| (arg.name.to_owned(), arg.kind.default()))
                .collect();
            let explicit = load(info.id, &defaults, 1);
            let implicit = load(info.id, &Map::new(), 1);
            let explicit = explicit.expect(info.id);
            let implicit = implicit.expect(info.id);
            assert_eq!(explicit.id(), info.id);
            assert_eq!(explicit.item(0), implicit.item(0));
            assert!(!info.about.is_empty() && info.args.iter().all(|arg| !arg.about.is_empty()));
        }
    }
}
