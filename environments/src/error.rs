//! Why an environment cannot be loaded. All of it is for the person who wrote the config: nothing here is worth a
//! retry.

use thiserror::Error;

/// An environment that cannot be loaded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EnvError {
    /// No environment has this id.
    #[error("there is no environment `{id}`; this version has {known}{}{}", hint(.nearest), asked(.interpreter))]
    Unknown {
        /// The id as given.
        id: String,
        /// Ids of all native environments, for the message.
        known: String,
        /// The known id closest in spelling.
        nearest: Option<&'static str>,
        /// The interpreter that has no module of this name either.
        interpreter: Option<String>,
    },
    /// The id is a path that does not exist.
    #[error("there is no folder or file {path}")]
    NoFolder {
        /// Path as given in the config.
        path: String,
    },
    /// The folder holds no package.
    #[error(
        "{path} holds no package: `{name}/__init__.py`, `{name}.py` or `__init__.py` is expected in it, or one module of another name"
    )]
    NoPackage {
        /// Path as given in the config.
        path: String,
        /// Package name that the path suggests.
        name: String,
    },
    /// The folder holds several modules, and none of them is meant more than the others.
    #[error(
        "{path} holds the modules {modules}, and none is called `{name}`: name one in `[project] name` of its \
         pyproject.toml, or write the path of the module"
    )]
    ManyModules {
        /// Path as given in the config.
        path: String,
        /// The name that the folder suggests.
        name: String,
        /// Names of the modules found, for the message.
        modules: String,
    },
    /// The environment's Python code cannot be loaded.
    #[error("the environment `{id}` cannot be loaded: {why}")]
    Python {
        /// Id of the environment.
        id: String,
        /// The error, with the place where it occurred.
        why: String,
    },
    /// The worker that runs Python environments cannot be set up.
    #[error("what runs Python environments cannot be set up: {0}")]
    WorkerSetup(String),
    /// The environment takes no argument of this name.
    #[error("`{env}` takes no argument `{key}`; it takes {allowed}{}", hint(.nearest))]
    UnknownArg {
        /// Id of the environment.
        env: &'static str,
        /// The argument as given.
        key: String,
        /// All arguments that it accepts, for the message.
        allowed: String,
        /// The known argument closest in spelling.
        nearest: Option<&'static str>,
    },
    /// A required argument is missing.
    #[error("`{key}` of `{env}` is missing: {about}")]
    MissingArg {
        /// Id of the environment.
        env: &'static str,
        /// Key of the missing argument.
        key: &'static str,
        /// What the argument does.
        about: &'static str,
    },
    /// An argument names something that cannot be used, such as a file with a wrong row.
    #[error("`{key}` of `{env}` cannot be used: {why}")]
    UnusableArg {
        /// Id of the environment.
        env: &'static str,
        /// Key of the argument.
        key: &'static str,
        /// What is wrong, and where.
        why: String,
    },
    /// An argument has the wrong type or lies out of range.
    #[error("`{key}` of `{env}` is {value}; it must be {allowed}")]
    WrongArg {
        /// Id of the environment.
        env: &'static str,
        /// Key of the wrong argument.
        key: &'static str,
        /// The value as given, as JSON.
        value: String,
        /// The accepted values, in words.
        allowed: String,
    },
    /// An argument is given that the other arguments leave without effect.
    #[error("`{key}` of `{env}` has an effect only with {needs}: leave it out, or change that")]
    NoEffect {
        /// Id of the environment.
        env: &'static str,
        /// Key of the argument without effect.
        key: &'static str,
        /// The setting that would give it an effect.
        needs: String,
    },
    /// The environment's own data is wrong: a bug of this crate.
    #[error("the data of `{env}` is wrong: {why}")]
    Data {
        /// Id of the environment.
        env: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

fn hint(nearest: &Option<&'static str>) -> String {
    nearest.map_or(String::new(), |name| format!(" (did you mean `{name}`?)"))
}

fn asked(interpreter: &Option<String>) -> String {
    interpreter.as_ref().map_or(String::new(), |name| format!(", and {name} finds no module of that name"))
}

/// The name closest in spelling to `wrong`, if it is close enough to be a typo.
pub(crate) fn nearest(wrong: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let enough = (wrong.chars().count() / 3).max(2);
    names
        .map(|name| (strsim::levenshtein(wrong, name), name))
        .filter(|(d, _)| *d <= enough)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_only_when_it_is_near() {
        let names = || ["shots", "task", "width"].into_iter();
        assert_eq!(nearest("shot", names()), Some("shots"));
        assert_eq!(nearest("tasks", names()), Some("task"));
        assert_eq!(nearest("wdith", names()), Some("width"));
        assert_eq!(nearest("temperature", names()), None);
    }
}
