//! `[[stages]]`: runs that follow each other, each from the last weights of the one before.
//!
//! A stage has a name and any tables of a config. Its keys override those outside of the stages, table by table; what
//! results is the config of one run.

use super::error::ConfigError;
use super::locations::ConfigLocations;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Key of the list of stages.
pub(super) const STAGES: &str = "stages";

/// A stage of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its place, from 0.
    pub index: usize,
    /// Its name, unique within the config.
    pub name: String,
}

impl Stage {
    /// The run folder of the stage below the folder of all.
    #[must_use]
    pub fn folder(&self, all: &Path) -> PathBuf {
        all.join(format!("{}-{}", self.index + 1, self.name))
    }
}

/// The stages of a config, in their order; none if it is the config of one run.
///
/// # Errors
/// The file cannot be read, or a stage has no valid name of its own.
pub fn stages(path: &Path) -> Result<Vec<Stage>, ConfigError> {
    let (table, locations) = super::layers::document(path)?;
    listed(&table, &locations)
}

fn listed(table: &Table, locations: &ConfigLocations) -> Result<Vec<Stage>, ConfigError> {
    let Some(value) = table.get(STAGES) else { return Ok(Vec::new()) };
    let wrong = |key: &str, problem: String| locations.wrong(key, problem);
    let all = value.as_array().filter(|all| !all.is_empty());
    let all = all.ok_or_else(|| wrong(STAGES, "must be a list of tables: write [[stages]]".into()))?;
    let mut stages: Vec<Stage> = Vec::new();
    for (index, stage) in all.iter().enumerate() {
        let key = format!("{STAGES}[{index}].name");
        let name = stage.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| wrong(&key, "is missing: name the stage in a word".into()))?;
        let letters = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > 40 || !name.chars().all(letters) {
            let problem = format!("is {name:?}; it must have 1 to 40 of A-Z, a-z, 0-9, `_` and `-`");
            return Err(wrong(&key, problem));
        }
        if stages.iter().any(|other| other.name == name) {
            return Err(wrong(&key, format!("is {name:?} a second time: give each stage a name of its own")));
        }
        stages.push(Stage { index, name: name.to_owned() });
    }
    Ok(stages)
}

/// Replaces the list of stages by the keys of the chosen one. Without stages nothing changes.
///
/// # Errors
/// A list that is wrong, or no stage or none that exists is chosen.
pub(super) fn choose(
    table: &mut Table,
    chosen: Option<&str>,
    locations: &mut ConfigLocations,
) -> Result<(), ConfigError> {
    let all = listed(table, locations)?;
    let names = || all.iter().map(|stage| stage.name.as_str()).collect::<Vec<_>>().join(", ");
    let stage = match chosen {
        None if all.is_empty() => return Ok(()),
        None => {
            return Err(
                locations.wrong(STAGES, format!("are several runs: choose one with --stage ({})", names()))
            );
        }
        Some(name) => all.iter().find(|stage| stage.name == name).ok_or_else(|| ConfigError::Wrong {
            place: format!("--stage {name}"),
            message: match all.is_empty() {
                true => "the config has no [[stages]]".into(),
                false => format!("the config has no such stage; it has {}", names()),
            },
            excerpt: None,
        })?,
    };
    let mut list = table.remove(STAGES).and_then(|list| list.as_array().cloned()).unwrap_or_default();
    if let Value::Table(mut own) = list.swap_remove(stage.index) {
        own.remove("name");
        merge(table, own);
    }
    locations.prefer(format!("{STAGES}[{}]", stage.index));
    Ok(())
}

/// Adds the keys of a table; tables are merged, everything else is replaced.
fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(over)) => merge(base, over),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[trainer]
learning_rate = 1.0
seed = 7
[[stages]]
name = \"sft\"
trainer.learning_rate = 2.0
[stages.sft]
data = \"x.jsonl\"
[[stages]]
name = \"rl\"
env.id = \"a\"
";

    fn chosen(text: &str, stage: Option<&str>) -> Result<(Table, ConfigLocations), String> {
        let mut table: Table = text.parse().unwrap();
        let mut locations = ConfigLocations::new("x.toml".into(), text);
        choose(&mut table, stage, &mut locations).map_err(|error| error.to_string())?;
        Ok((table, locations))
    }

    #[test]
    fn the_keys_of_a_stage_override_those_outside() {
        let (sft, locations) = chosen(TEXT, Some("sft")).unwrap();
        let expected = "trainer = { learning_rate = 2.0, seed = 7 }\nsft.data = \"x.jsonl\"";
        assert_eq!(sft, expected.parse().unwrap());
        let place =
            |key: &str| locations.wrong(key, "is wrong").to_string().split(": ").next().unwrap().to_owned();
        assert_eq!(place("trainer.learning_rate"), "x.toml:6:25", "where the stage writes it");
        assert_eq!(place("trainer.seed"), "x.toml:3:8");
        let (rl, _) = chosen(TEXT, Some("rl")).unwrap();
        assert_eq!(rl, "trainer = { learning_rate = 1.0, seed = 7 }\nenv.id = \"a\"".parse().unwrap());
    }

    #[test]
    fn stages_need_names_and_one_of_them_is_chosen() {
        for (text, stage, problem) in [
            (TEXT, None, "x.toml:4:1: `stages` are several runs: choose one with --stage (sft, rl)"),
            (TEXT, Some("ppo"), "--stage ppo: the config has no such stage; it has sft, rl"),
            ("seed = 1", Some("sft"), "--stage sft: the config has no [[stages]]"),
            ("[[stages]]\n", Some("a"), "`stages[0].name` is missing"),
            ("[[stages]]\nname = \"a/b\"", Some("a"), "`stages[0].name` is \"a/b\"; it must have 1 to 40 of"),
            (
                "[[stages]]\nname = \"a\"\n[[stages]]\nname = \"a\"",
                Some("a"),
                "`stages[1].name` is \"a\" a second time",
            ),
            ("stages = 3", Some("a"), "`stages` must be a list of tables"),
        ] {
            let error = chosen(text, stage).map(|(table, _)| table).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
        assert_eq!(chosen("a = 1", None).unwrap().0, "a = 1".parse().unwrap());
    }
}
