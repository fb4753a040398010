//! The JSON Schema of a config, for editors, and the known keys, for error messages.
//!
//! Keys, types, allowed values and descriptions come from [`super::file`]. TOML has no null, so optional keys are those
//! that `required` does not list.

use super::error::{distance, nearest};
use super::file::ConfigFile;
use super::overrides;
use super::stages::STAGES;
use minds_environments::native;
use minds_environments::render;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The schema of a type, draft 2020-12.
#[must_use]
pub(super) fn schema_of<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    schema
}

/// The schema of a config.
#[must_use]
pub fn schema() -> Value {
    let mut schema = schema_of_one_run();
    add_stages(&mut schema);
    schema
}

/// The same without stages, whose keys are those of a run.
pub(super) fn schema_of_one_run() -> Value {
    let mut schema = schema_of::<ConfigFile>();
    schema["title"] = "A config of minds-actors".into();
    let ids: Vec<&str> = native::list().iter().map(|info| info.id).collect();
    schema["$defs"]["EnvConfig"]["properties"]["id"]["examples"] = ids.into();
    schema["$defs"]["BaseModelConfig"]["properties"]["renderer_name"]["examples"] =
        render::names().collect::<Vec<_>>().into();
    add_other_names(&mut schema);
    schema
}

/// Adds the list of stages: each has a name, and the tables of a config.
fn add_stages(schema: &mut Value) {
    let mut properties = schema["properties"].clone();
    properties["name"] =
        json!({ "type": "string", "description": "Name of the stage, and of its run folder." });
    schema["properties"][STAGES] = json!({
        "description": "Runs that follow each other, each from the last weights of the one before.",
        "type": "array",
        "items": {
            "type": "object", "properties": properties, "required": ["name"], "additionalProperties": false,
        },
    });
}

/// Removes what TOML cannot express or an editor does not need: nulls, and the defaults of whole tables.
fn tidy(node: &mut Value) {
    let Value::Object(object) = node else { return };
    for needless in ["default", "format", "writeOnly"] {
        object.remove(needless);
    }
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|name| name != "null");
        if let [one] = &types[..] {
            object["type"] = one.clone();
        }
    }
    if let Some(Value::Array(names)) = object.get_mut("enum") {
        names.retain(|name| !name.is_null());
    }
    if let Some(Value::Array(ways)) = object.get_mut("anyOf") {
        ways.retain(|way| *way != json!({ "type": "null" }));
        if let [Value::Object(one)] = &ways[..] {
            let one = one.clone();
            object.remove("anyOf");
            // The description of the key takes precedence over that of its type.
            for (word, value) in one {
                object.entry(word).or_insert(value);
            }
        }
    }
    for (word, value) in object.iter_mut() {
        match (word.as_str(), value) {
            ("properties" | "$defs", Value::Object(parts)) => parts.values_mut().for_each(tidy),
            ("anyOf" | "oneOf" | "allOf", Value::Array(ways)) => ways.iter_mut().for_each(tidy),
            ("items" | "additionalProperties", part) => tidy(part),
            _ => {}
        }
    }
}

/// Adds each key under its other name too.
fn add_other_names(schema: &mut Value) {
    let tables = schema["$defs"].as_object_mut().into_iter().flat_map(|tables| tables.values_mut());
    for properties in tables.filter_map(|table| table.get_mut("properties")?.as_object_mut()) {
        for (first, other) in overrides::synonyms() {
            if let Some(mut key) = properties.get(first).cloned() {
                key["description"] = format!("The same as `{first}`.").into();
                properties.insert(other.into(), key);
            }
        }
    }
}

/// The first key of the table that a schema does not know, with its error message.
#[must_use]
pub(super) fn unknown_key(schema: &Value, table: &toml::Table) -> Option<(String, String)> {
    SchemaKeys { schema }.unknown(schema, "", table)
}

/// The keys that a schema allows.
struct SchemaKeys<'a> {
    schema: &'a Value,
}

impl<'a> SchemaKeys<'a> {
    /// The properties of a table's node, if it lists the allowed keys.
    fn table(&self, node: &'a Value) -> Option<&'a Map<String, Value>> {
        if let Some(properties) = node["properties"].as_object() {
            return Some(properties);
        }
        if let Some(name) = node["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
            return self.table(&self.schema["$defs"][name]);
        }
        node["anyOf"].as_array()?.iter().find_map(|way| self.table(way))
    }

    fn unknown(&self, node: &'a Value, path: &str, table: &toml::Table) -> Option<(String, String)> {
        let known = self.table(node)?;
        table.iter().find_map(|(key, value)| {
            let here = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match (known.get(key), value) {
                (None, _) => Some((here, self.complaint(known, path, key, value))),
                (Some(node), toml::Value::Table(inner)) => self.unknown(node, &here, inner),
                (Some(node), toml::Value::Array(list)) => list.iter().enumerate().find_map(|(i, element)| {
                    self.unknown(&node["items"], &format!("{here}[{i}]"), element.as_table()?)
                }),
                _ => None,
            }
        })
    }

    fn complaint(&self, known: &Map<String, Value>, path: &str, key: &str, value: &toml::Value) -> String {
        let what = match (path, value) {
            ("", toml::Value::Table(_)) => format!("there is no table [{key}]"),
            ("", _) => format!("there is no key `{key}` outside of tables"),
            _ => format!("there is no key `{key}` in {}", header(path)),
        };
        let homes: Vec<String> = self
            .tables()
            .into_iter()
            .filter(|(table, keys)| table != path && !table.is_empty() && keys.contains_key(key))
            .map(|(table, _)| header(&table))
            .collect();
        if !homes.is_empty() {
            return format!("{what}: it belongs to {}", homes.join(" or "));
        }
        if let Some(meant) = nearest(key, known.keys().map(String::as_str)) {
            return match (path, value) {
                ("", toml::Value::Table(_)) => format!("{what}; did you mean [{meant}]?"),
                _ => format!("{what}; did you mean `{meant}`?"),
            };
        }
        let tables = self.tables();
        let elsewhere = tables.iter().filter(|(table, _)| !table.is_empty()).flat_map(|(table, keys)| {
            keys.keys().filter_map(move |known| Some((distance(key, known)?, table, known)))
        });
        match elsewhere.min_by_key(|(distance, ..)| *distance) {
            Some((_, table, meant)) => format!("{what}; did you mean `{meant}` in {}?", header(table)),
            None => {
                let known: Vec<&str> = known.keys().map(String::as_str).collect();
                format!("{what}; there are: {}", known.join(", "))
            }
        }
    }

    /// Every table that the file may have by name, with its keys.
    fn tables(&self) -> Vec<(String, &'a Map<String, Value>)> {
        let mut found = Vec::new();
        self.collect(self.schema, "", &mut found);
        found
    }

    fn collect(&self, node: &'a Value, path: &str, found: &mut Vec<(String, &'a Map<String, Value>)>) {
        let Some(keys) = self.table(node) else { return };
        found.push((path.into(), keys));
        for (key, node) in keys {
            let here = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            self.collect(if node["items"].is_null() { node } else { &node["items"] }, &here, found);
        }
    }
}

/// The header of a table in a file.
fn header(path: &str) -> String {
    let name = path.split('[').next().unwrap_or_default();
    match name {
        "envs" | "simulate.faults" | "faults" | "outages" => format!("[[{name}]]"),
        _ => format!("[{name}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> (String, String) {
        unknown_key(&schema(), &text.parse().unwrap()).expect(text)
    }

    #[test]
    fn an_unknown_key_is_an_error_with_a_suggestion() {
        for (text, key, words) in [
            (
                "[trainer]\nlerning_rate = 1",
                "trainer.lerning_rate",
                "in [trainer]; did you mean `learning_rate`?",
            ),
            ("[trianer]\nseed = 1", "trianer", "there is no table [trianer]; did you mean [trainer]?"),
            ("learning_rate = 1", "learning_rate", "outside of tables: it belongs to [trainer] or [shadow]"),
            ("lern_rate = 1", "lern_rate", "did you mean `learning_rate` in [trainer]?"),
            ("[trainer]\nmax_new_tokens = 1", "trainer.max_new_tokens", "it belongs to [trainer.args]"),
            (
                "[[envs]]\nid = 'a'\n[[envs]]\nweigth = 1",
                "envs[1].weigth",
                "in [[envs]]; did you mean `weight`?",
            ),
            ("[simulate.sample]\nmaen = 1", "simulate.sample.maen", "did you mean `mean`?"),
            ("[run]\nqqqqqqqq = 1", "run.qqqqqqqq", "there are: deadline, give_up_after"),
        ] {
            let (found, message) = complaint(text);
            assert_eq!(found, key, "{text}");
            assert!(message.contains(words), "{text}: {message}");
        }
        for text in ["[env.args]\nanything = 1", "[trainer]\nbatch_size = 4", "simulate.sample = 3"] {
            assert_eq!(unknown_key(&schema(), &text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn the_schema_has_titles_and_every_key_has_a_description() {
        let schema = schema();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        let keys = SchemaKeys { schema: &schema };
        for (table, known) in keys.tables() {
            for (key, node) in known {
                assert!(node["description"].as_str().is_some_and(|text| !text.is_empty()), "{table}.{key}");
            }
        }
        let trainer = &schema["$defs"]["TrainerConfig"]["properties"];
        assert_eq!(trainer["staleness"]["type"], "string");
        assert_eq!(trainer["staleness"]["enum"], json!(["wait", "drop"]));
        assert_eq!(
            trainer["kl_reference"]["anyOf"],
            json!([{ "enum": ["base"] }, { "pattern": "^pinned:." }])
        );
        assert_eq!(trainer["groups_per_batch"]["minimum"], 1);
        assert_eq!(schema["$defs"]["TrainerConfig"]["properties"]["lora_rank"]["type"], "integer");
        assert!(!schema.to_string().contains("null"), "{schema:#}");
    }

    /// The names of every choice below a node.
    fn choices<'a>(node: &'a Value, key: &'a str, found: &mut Vec<(&'a str, &'a str)>) {
        match node {
            Value::Object(object) => object.iter().for_each(|(name, node)| match node {
                Value::Array(names) if name == "enum" => {
                    found.extend(names.iter().filter_map(|name| Some((key, name.as_str()?))));
                }
                // The parts of a key's own schema are not keys.
                _ if ["anyOf", "items"].contains(&name.as_str()) => choices(node, key, found),
                _ => choices(node, name, found),
            }),
            Value::Array(nodes) => nodes.iter().for_each(|node| choices(node, key, found)),
            _ => {}
        }
    }

    #[test]
    fn the_docs_name_every_key_and_every_choice() {
        let docs = [
            include_str!("../../docs/configuration.md"),
            include_str!("../../docs/simulate.md"),
            include_str!("../../docs/workers.md"),
        ]
        .concat();
        let schema = schema();
        let keys = SchemaKeys { schema: &schema };
        for (table, known) in keys.tables() {
            for (key, node) in known {
                let is_table =
                    keys.table(if node["items"].is_null() { node } else { &node["items"] }).is_some();
                assert!(is_table || docs.contains(&format!("{key}`")), "{table}.{key}");
            }
        }
        let mut names = Vec::new();
        choices(&schema, "", &mut names);
        assert!(names.contains(&("loss_fn", "cispo")) && names.len() > 25, "{names:?}");
        for (key, name) in names {
            assert!(
                docs.contains(&format!("`{name}`")) || docs.contains(&format!("\"{name}\"")),
                "{key}: {name}"
            );
        }
    }
}
