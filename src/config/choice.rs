//! Keys with a fixed set of values: their types, schema and error messages follow from the enum that they are read into.

use super::error::nearest;
use minds_core::choice::{variant, variant_names};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// The value of a key that names a variant of an enum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Choice<T>(pub T);

/// The variant that a key names, or the default one.
pub(super) fn chosen<T: Default>(key: Option<Choice<T>>) -> T {
    key.unwrap_or_default().0
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Choice<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let written = String::deserialize(from)?;
        let names = variant_names::<T>().iter().copied();
        let chosen = variant(&written).map(Self);
        chosen.ok_or_else(|| D::Error::custom(is_none_of(&written, names)))
    }
}

impl<T: Serialize> fmt::Display for Choice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.serialize(f)
    }
}

impl<T: DeserializeOwned> JsonSchema for Choice<T> {
    fn schema_name() -> Cow<'static, str> {
        variant_names::<T>().join("_or_").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": variant_names::<T>() })
    }
}

/// Weights that a key names: those of a variant, or saved sampler weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightsChoice<T> {
    /// The weights that a name stands for.
    Named(T),
    /// Saved sampler weights, by their path on the service: `pinned:<path>`.
    Pinned(String),
}

/// What stands before the path of saved weights.
const PINNED: &str = "pinned:";

impl<T> WeightsChoice<T> {
    /// The path of saved sampler weights, if it is one.
    #[must_use]
    pub fn pinned(&self) -> Option<&str> {
        match self {
            Self::Named(_) => None,
            Self::Pinned(path) => Some(path),
        }
    }
}

impl<T: Default> Default for WeightsChoice<T> {
    fn default() -> Self {
        Self::Named(T::default())
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for WeightsChoice<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let written = String::deserialize(from)?;
        if let Some(path) = written.strip_prefix(PINNED).filter(|path| !path.is_empty()) {
            return Ok(Self::Pinned(path.to_owned()));
        }
        let names = variant_names::<T>().iter().copied().chain(["pinned:<path of sampler weights>"]);
        let named = variant(&written).map(Self::Named);
        named.ok_or_else(|| D::Error::custom(is_none_of(&written, names)))
    }
}

impl<T: Serialize> Serialize for WeightsChoice<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Named(named) => named.serialize(to),
            Self::Pinned(path) => to.collect_str(&format_args!("{PINNED}{path}")),
        }
    }
}

impl<T: DeserializeOwned> JsonSchema for WeightsChoice<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}_or_pinned", variant_names::<T>().join("_or_")).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "anyOf": [{ "enum": variant_names::<T>() }, { "pattern": format!("^{PINNED}.") }],
        })
    }
}

/// The complaint about a value outside these names, with the nearest of them.
pub(super) fn is_none_of<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let meant = nearest(written, names.iter().copied());
    let meant = meant.map(|meant| format!("; did you mean \"{meant}\"?")).unwrap_or_default();
    format!("is \"{written}\"; it must be one of: {}{meant}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::advantage::Estimator;
    use toml::Value;

    #[test]
    fn a_choice_is_written_as_it_is_read_and_others_are_refused_by_name() {
        let read = |name: &str| Choice::<Estimator>::deserialize(Value::from(name));
        for name in variant_names::<Estimator>() {
            let choice = read(name).unwrap();
            assert_eq!(choice.to_string(), *name);
            assert_eq!(Value::try_from(choice).unwrap(), Value::from(*name));
        }
        let problem = "is \"group_maen\"; it must be one of: group_mean, group_std, leave_one_out, none; \
                       did you mean \"group_mean\"?";
        assert_eq!(read("group_maen").unwrap_err().message(), problem);
    }

    #[test]
    fn weights_are_named_or_pinned_by_a_path() {
        let read = |name: &str| WeightsChoice::<Estimator>::deserialize(Value::from(name));
        for (name, weights) in [
            ("none", WeightsChoice::Named(Estimator::None)),
            ("pinned:tinker://x", WeightsChoice::Pinned("tinker://x".into())),
        ] {
            assert_eq!(read(name).unwrap(), weights);
            assert_eq!(Value::try_from(weights).unwrap(), Value::from(name));
        }
        assert!(read("pinned:").unwrap_err().message().ends_with(", none, pinned:<path of sampler weights>"));
    }
}
