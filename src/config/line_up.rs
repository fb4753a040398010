//! Models that Tinker's hosted service no longer offers, and the variants in the names of models.

/// A model that the hosted service has retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetiredModel {
    /// `owner/name`, without a variant.
    pub name: &'static str,
    /// Date of its retirement.
    pub date: &'static str,
    /// A model in its place. Those of the service's own list of replacements, or the nearest by family and size.
    pub successor: &'static str,
}

const JUNE: &str = "12 June 2026";

const fn retired(name: &'static str, date: &'static str, successor: &'static str) -> RetiredModel {
    RetiredModel { name, date, successor }
}

/// As of November 2026 (<https://tinker-docs.thinkingmachines.ai/tinker/model-deprecations/>, and tinker-cookbook 0.6.1).
const RETIRED: &[RetiredModel] = &[
    retired("deepseek-ai/DeepSeek-V3.1-Base", JUNE, "deepseek-ai/DeepSeek-V3.1"),
    retired("meta-llama/Llama-3.1-70B", JUNE, "Qwen/Qwen3.6-35B-A3B"),
    retired("meta-llama/Llama-3.1-8B", JUNE, "Qwen/Qwen3.5-9B-Base"),
    retired("meta-llama/Llama-3.1-8B-Instruct", JUNE, "Qwen/Qwen3.5-9B"),
    retired("meta-llama/Llama-3.2-1B", JUNE, "Qwen/Qwen3.5-4B"),
    retired("meta-llama/Llama-3.2-3B", JUNE, "Qwen/Qwen3.5-4B"),
    retired("meta-llama/Llama-3.3-70B-Instruct", JUNE, "Qwen/Qwen3.6-35B-A3B"),
    retired("moonshotai/Kimi-K2-Thinking", JUNE, "moonshotai/Kimi-K2.6"),
    retired("moonshotai/Kimi-K2.5", "12 July 2026", "moonshotai/Kimi-K2.6"),
    retired("Qwen/Qwen3-235B-A22B-Instruct-2507", JUNE, "Qwen/Qwen3.5-397B-A17B"),
    retired("Qwen/Qwen3-30B-A3B", JUNE, "Qwen/Qwen3.6-35B-A3B"),
    retired("Qwen/Qwen3-30B-A3B-Base", JUNE, "Qwen/Qwen3.5-35B-A3B-Base"),
    retired("Qwen/Qwen3-30B-A3B-Instruct-2507", JUNE, "Qwen/Qwen3.6-35B-A3B"),
    retired("Qwen/Qwen3-32B", JUNE, "Qwen/Qwen3.8-27B"),
    retired("Qwen/Qwen3-4B-Instruct-2507", JUNE, "Qwen/Qwen3.5-4B"),
    retired("Qwen/Qwen3-VL-235B-A22B-Instruct", JUNE, "Qwen/Qwen3.5-397B-A17B"),
    retired("Qwen/Qwen3-VL-30B-A3B-Instruct", JUNE, "Qwen/Qwen3.6-35B-A3B"),
    retired("Qwen/Qwen3.5-27B", JUNE, "Qwen/Qwen3.8-27B"),
    retired("Qwen/Qwen3.5-35B-A3B", JUNE, "Qwen/Qwen3.6-35B-A3B"),
    retired("Qwen/Qwen3.6-27B", "2 September 2026", "Qwen/Qwen3.8-27B"),
];

/// The retired model with this name, which may have a variant.
#[must_use]
pub fn retired_model(name: &str) -> Option<&'static RetiredModel> {
    let (name, _) = minds_models::split_variant(name);
    RETIRED.iter().find(|model| model.name.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_model_has_a_successor_that_is_offered() {
        let found = retired_model("Qwen/Qwen3-30B-A3B:peft:131072").unwrap();
        assert_eq!((found.date, found.successor), ("12 June 2026", "Qwen/Qwen3.6-35B-A3B"));
        assert_eq!(retired_model("Qwen/Qwen3-8B"), None);
        for model in RETIRED {
            assert_eq!(retired_model(model.successor), None, "{}", model.name);
        }
    }
}
