//! Settings that others recommend for a model: its publisher, and tinker-cookbook.

use minds_models::PublishedSettings;

/// Release of tinker-cookbook that the formula is from.
const COOKBOOK: &str = "tinker-cookbook 0.6.1, hyperparam_utils.get_lr";

/// Learning rate for LoRA by tinker-cookbook's formula, which is calibrated for the families Qwen and Llama only.
fn learning_rate(model: &str, hidden_size: usize) -> Option<f64> {
    let name = model.to_ascii_lowercase();
    let exponent = match () {
        () if name.contains("llama") => 0.781,
        () if name.contains("qwen") => 0.0775,
        () => return None,
    };
    Some(10.0 * 5e-5 * (2000.0 / hidden_size as f64).powf(exponent))
}

/// The recommended learning rate as a text with its source.
pub fn learning_rate_line(model: &str, published: &PublishedSettings) -> Option<String> {
    let rate = learning_rate(model, published.hidden_size?)?;
    Some(format!("{rate:.1e} for LoRA ({COOKBOOK})"))
}

/// The recommended sampling as a text with its source.
pub fn sampling_line(published: &PublishedSettings) -> Option<String> {
    let sampling = published.sampling()?;
    Some(format!("{sampling} (generation_config.json of the model)"))
}

/// A note where a learning rate is far from the recommended one.
pub fn learning_rate_note(model: &str, published: &PublishedSettings, rate: f64) -> Option<String> {
    let recommended = learning_rate(model, published.hidden_size?)?;
    let is_far = rate > 2.0 * recommended || rate < recommended / 2.0;
    let line = learning_rate_line(model, published)?;
    is_far.then(|| format!("trainer.learning_rate: it is {rate:e}; recommended for {model} is {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of `get_lr` itself.
    #[test]
    fn the_learning_rate_is_that_of_the_cookbook() {
        for (model, hidden_size, expected) in [
            ("Qwen/Qwen3-8B", 4096, 0.000_472_979_080_913_763_54),
            ("Qwen/Qwen3.8-27B:peft:131072", 5120, 0.000_464_869_878_799_652),
            ("meta-llama/Llama-3.2-1B", 2048, 0.000_490_823_940_972_215_8),
        ] {
            let found = learning_rate(model, hidden_size).unwrap();
            assert!((found / expected - 1.0).abs() < 1e-12, "{model}: {found}");
        }
        assert_eq!(learning_rate("openai/gpt-oss-20b", 2880), None);
    }

    #[test]
    fn a_learning_rate_is_noted_only_if_it_is_far_from_the_recommended_one() {
        let published = PublishedSettings { hidden_size: Some(4096), ..PublishedSettings::default() };
        let note = |rate| learning_rate_note("Qwen/Qwen3-8B", &published, rate);
        assert_eq!(note(4e-4), None);
        let expected = "trainer.learning_rate: it is 1e-4; recommended for Qwen/Qwen3-8B is 4.7e-4 for LoRA \
                        (tinker-cookbook 0.6.1, hyperparam_utils.get_lr)";
        assert_eq!(note(1e-4).as_deref(), Some(expected));
        assert_eq!(learning_rate_note("Qwen/Qwen3-8B", &PublishedSettings::default(), 1.0), None);
    }
}
