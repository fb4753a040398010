//! The `type` fields: one unit type per literal, so that no literal can be misspelled or omitted.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Reads `null` as the default, as old SDKs intend.
pub(super) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads a number that controls training. Rejects `null`, which JSON writers put in place of NaN.
pub(super) fn real<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let written = Option::deserialize(deserializer)?;
    written.ok_or_else(|| {
        D::Error::custom("it is null, as JSON writers put it for NaN: send a number, or leave it out")
    })
}

/// Reads numbers, with `null` as NaN.
pub(super) fn reals<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<f32>>, D::Error> {
    let written = Option::<Vec<Option<f32>>>::deserialize(from)?;
    Ok(written.map(|all| all.into_iter().map(|real| real.unwrap_or(f32::NAN)).collect()))
}

/// The literals of `type` fields.
pub mod tag {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};
    use std::borrow::Cow;

    macro_rules! literals {
        ($($name:ident = $text:literal),* $(,)?) => {$(
            #[doc = concat!("Always written as `", $text, "`; a missing or null one is read too.")]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name;

            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.serialize_str($text)
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    match Option::<Cow<'de, str>>::deserialize(deserializer)? {
                        None => Ok(Self),
                        Some(text) if text == $text => Ok(Self),
                        Some(text) => Err(D::Error::custom(format_args!("`type` is {text:?}, not {:?}", $text))),
                    }
                }
            }
        )*};
    }

    literals! {
        CreateModel = "create_model",
        CreateSamplingSession = "create_sampling_session",
        CreateSession = "create_session",
        GetInfo = "get_info",
        LoadWeights = "load_weights",
        OptimStep = "optim_step",
        Sample = "sample",
        SaveWeights = "save_weights",
        SaveWeightsForSampler = "save_weights_for_sampler",
        SessionHeartbeat = "session_heartbeat",
        TryAgain = "try_again",
        UnloadModel = "unload_model",
    }
}
