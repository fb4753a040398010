//! How a record's fields become keys of a flat row and back. Field, key, unit and meaning of a number stand once, in
//! [`numbers`].

use crate::reward::Metrics;
use std::collections::{BTreeMap, BTreeSet};

/// Stands between an environment and a reward's own metric that has the key of a number of the record.
const APART: &str = "metric";

/// Key, unit and meaning of a number.
#[derive(Clone, Copy, Debug)]
pub struct NumberInfo {
    /// Key in a row of the run folder, without the name of an environment.
    pub key: &'static str,
    /// Unit, or – for a number without one.
    pub unit: &'static str,
    /// What it measures, in Markdown.
    pub meaning: &'static str,
}

/// A record with a fixed set of numbers and a map of others.
pub(super) trait NumericRecord: Default {
    /// The numbers that are present.
    fn present(&self) -> impl Iterator<Item = (&'static str, f64)>;

    /// The field of a key.
    fn field(&mut self, key: &str) -> Option<&mut Option<f64>>;

    /// The open numbers, by name.
    fn others(&self) -> &Metrics;

    /// The open numbers, to be changed.
    fn others_mut(&mut self) -> &mut Metrics;
}

/// Declares a record: other fields, then each number as `field: "key" "unit"` under its doc comment, then the map of
/// open numbers with the keys that the documentation lists for it.
macro_rules! numbers {
    (
        $(#[$about:meta])*
        pub struct $record:ident with $keys:ident { $( $(#[$extra_about:meta])* $extra:ident: $type:ty, )* }
        numbers { $( $(#[doc = $doc:literal])+ $field:ident: $key:literal $unit:literal, )+ }
        $(#[$open_about:meta])*
        open $open:ident { $( $(#[doc = $open_doc:literal])+ $open_key:literal $open_unit:literal, )+ }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $record {
            $( $(#[$extra_about])* pub $extra: $type, )*
            $(
                $(#[doc = $doc])+
                #[doc = concat!("\n\nKey `", $key, "`, unit ", $unit, ".")]
                pub $field: Option<f64>,
            )+
            $(#[$open_about])*
            pub $open: $crate::reward::Metrics,
        }

        #[doc = concat!("The key of each number of a [`", stringify!($record), "`].")]
        #[derive(Clone, Copy, Debug)]
        pub struct $keys {
            $(
                #[doc = concat!("Key of [`", stringify!($record), "::", stringify!($field), "`].")]
                pub $field: &'static str,
            )+
        }

        impl $record {
            /// The key of each number.
            pub const KEYS: $keys = $keys { $( $field: $key, )+ };

            /// Key, unit and meaning of all numbers, and of the kinds of open ones.
            pub const NUMBERS: &[NumberInfo] = &[
                $( NumberInfo { key: $key, unit: $unit, meaning: concat!($($doc),+) }, )+
                $( NumberInfo { key: $open_key, unit: $open_unit, meaning: concat!($($open_doc),+) }, )+
            ];
        }

        impl NumericRecord for $record {
            fn present(&self) -> impl Iterator<Item = (&'static str, f64)> {
                let all = [$( ($key, self.$field) ),+];
                all.into_iter().filter_map(|(key, value)| Some((key, value?)))
            }

            fn field(&mut self, key: &str) -> Option<&mut Option<f64>> {
                match key {
                    $( $key => Some(&mut self.$field), )+
                    _ => None,
                }
            }

            fn others(&self) -> &$crate::reward::Metrics {
                &self.$open
            }

            fn others_mut(&mut self) -> &mut $crate::reward::Metrics {
                &mut self.$open
            }
        }
    };
}
pub(super) use numbers;

/// Sets the number of a key, or adds it to the others.
pub(super) fn set(record: &mut impl NumericRecord, key: &str, value: f64) {
    match record.field(key) {
        Some(field) => *field = Some(value),
        None => {
            record.others_mut().insert(key.to_owned(), value);
        }
    }
}

/// Adds the numbers of each environment to a row, under `<start>/<name>/`.
pub(super) fn add_environments<R: NumericRecord>(row: &mut Metrics, start: &str, all: &BTreeMap<String, R>) {
    let mut keys = R::default();
    for (name, record) in all {
        for (key, value) in record.others() {
            let place = if keys.field(key).is_some() { format!("{APART}/{key}") } else { key.clone() };
            row.insert(format!("{start}/{name}/{place}"), *value);
        }
        row.extend(record.present().map(|(key, value)| (format!("{start}/{name}/{key}"), value)));
    }
}

/// Takes the numbers of all environments out of a row. Names may hold slashes, so a name counts only if the row has the
/// number `sign` under it; of two names that fit a key, the longer one owns it.
pub(super) fn take_environments<R: NumericRecord>(
    row: &mut Metrics,
    start: &str,
    sign: &str,
) -> BTreeMap<String, R> {
    let names: BTreeSet<String> =
        row.keys().filter_map(|key| environment_of(key, start, sign)).map(str::to_owned).collect();
    let is_part = |name: &String| {
        let owner = name.strip_suffix(APART).and_then(|name| name.strip_suffix('/'));
        owner.is_some_and(|owner| names.contains(owner))
    };
    let mut all: BTreeMap<String, R> =
        names.iter().filter(|name| !is_part(name)).map(|name| (name.clone(), R::default())).collect();
    row.retain(|key, value| {
        let Some(rest) = below(key, start) else { return true };
        let mut splits = rest.rmatch_indices('/').map(|(at, _)| (&rest[..at], &rest[at + 1..]));
        let owner = splits.find(|(name, _)| all.contains_key(*name));
        let Some((record, key)) = owner.and_then(|(name, key)| Some((all.get_mut(name)?, key))) else {
            return true;
        };
        match below(key, APART).filter(|own| record.field(own).is_some()) {
            Some(own) => {
                record.others_mut().insert(own.to_owned(), *value);
            }
            None => set(record, key, *value),
        }
        false
    });
    all
}

/// Name of the environment that has the number `sign` under this key.
pub(super) fn environment_of<'a>(key: &'a str, start: &str, sign: &str) -> Option<&'a str> {
    below(key, start)?.strip_suffix(sign)?.strip_suffix('/')
}

/// The rest of a key after `start` and a slash.
fn below<'a>(key: &'a str, start: &str) -> Option<&'a str> {
    key.strip_prefix(start)?.strip_prefix('/')
}
