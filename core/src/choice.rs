//! Enums without data by the names of their variants, as serde reads and writes them.
//!
//! Configs, schemas and error messages take the names from here, so that a new choice is one variant.

use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// The names of the variants of `T`, in their order; empty if `T` is not an enum.
#[must_use]
pub fn variant_names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // Always an error: the deserializer has the names and no value.
    drop(T::deserialize(VariantNames(&mut names)));
    names
}

/// The variant of `T` with this name.
#[must_use]
pub fn variant<'de, T: Deserialize<'de>>(name: &'de str) -> Option<T> {
    let name: StrDeserializer<'de, ValueError> = name.into_deserializer();
    T::deserialize(name).ok()
}

/// Keeps the names that the implementation of an enum hands to its deserializer.
struct VariantNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for VariantNames<'_> {
    type Error = ValueError;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, ValueError> {
        *self.0 = variants;
        Err(ValueError::custom("there is no value"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ValueError> {
        Err(ValueError::custom("there is no value"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advantage::Estimator;

    #[test]
    fn the_names_of_an_enum_are_those_that_it_is_read_from() {
        let names = variant_names::<Estimator>();
        assert_eq!(names, ["group_mean", "group_std", "leave_one_out", "none"]);
        assert_eq!(variant("leave_one_out"), Some(Estimator::LeaveOneOut));
        assert_eq!(variant::<Estimator>("LeaveOneOut"), None);
        assert!(names.iter().all(|name| variant::<Estimator>(name).is_some()));
        assert_eq!(variant_names::<u64>(), [""; 0]);
    }
}
