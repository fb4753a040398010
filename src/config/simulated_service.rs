//! The file of `serve --simulated`: the model that a scripted service announces, its times, capacities and faults.

use super::error::{ConfigError, KeyProblem, at_most, at_most_whole, ensure, ensure_number};
use super::latency::{LatencySetting, MOST_SECONDS};
use super::layers::{document, typed};
use super::schema::schema_of;
use super::simulate::{ServiceFaultSetting, ServiceFaultTable};
use minds_core::chat::Tokenizer as _;
use minds_core::ids::Token;
use minds_core::service::ServiceInfo;
use minds_models::{ByteTokenizer, TINY_RANDOM};
use minds_simulation::{PassTime, SimulationOptions};
use schemars::JsonSchema;
use serde::Deserialize;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// What the official SDK takes if a server does not say it.
const MAX_SAMPLE_REQUESTS: NonZeroUsize = NonZeroUsize::new(2000).expect("2000 is not 0");

/// Most pending requests, and connections that fetch their results: clients request samples in great numbers at once.
pub const MOST_REQUESTS: NonZeroUsize = NonZeroUsize::new(1 << 20).expect("2^20 is not 0");

/// Largest vocabulary, 64 times that of the largest models.
const MOST_VOCAB: usize = 1 << 24;
/// Longest context in tokens.
const MOST_CONTEXT: usize = 100_000_000;
/// Most steps that a summary leaves out at each end.
const MOST_STEPS: usize = 1_000_000;

/// Behavior of a scripted service. Keys that `[simulate]` has too mean the same here.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatedServiceFile {
    /// The model that the service announces. Clients need its tokenizer.
    pub base_model: String,
    /// Context of the model, in tokens.
    pub context: usize,
    /// Size of the model's vocabulary.
    pub vocab: usize,
    /// The first and the last of the tokens that samples consist of. No stop token should lie between them.
    pub alphabet: [Token; 2],
    /// Seed of all random draws.
    pub seed: u64,
    /// Time that one sample takes.
    pub sample: LatencySetting,
    /// Tokens of a sample, if the request does not limit it to fewer.
    pub tokens: usize,
    /// Tokens that a sample draws per second, which then decide its length in the place of `tokens`.
    pub tokens_per_second: Option<f64>,
    /// Samples and queries that the service processes at a time.
    pub sampling_slots: Option<NonZeroUsize>,
    /// Maximum number of sample requests in flight that the service asks of a client.
    pub max_sample_requests: NonZeroUsize,
    /// Time that one logprob query takes.
    pub query: LatencySetting,
    /// Time of the first pass of a step, beside the times of its data.
    pub forward_backward: LatencySetting,
    /// Seconds of a pass per datum.
    pub datum_s: f64,
    /// Seconds of a pass per token, prompts included.
    pub token_s: f64,
    /// Time that an optimizer step takes.
    pub optim_step: LatencySetting,
    /// Time to publish weights for samplers.
    pub export: LatencySetting,
    /// Time to save or load a checkpoint.
    pub save: LatencySetting,
    /// Training starts only at multiples of this time in seconds; requests that wait by then share it.
    pub cycle_s: f64,
    /// Steps at the beginning that the summary leaves out of rates and shares.
    pub warm_up_steps: usize,
    /// Steps at the end that it leaves out.
    pub cool_down_steps: usize,
    /// Share of the sample requests and logprob queries that fail and may be retried.
    pub failures: f64,
    /// Share of the sample requests that never get a result.
    pub hangs: f64,
    /// Share of the samples with a logprob that is not finite.
    pub not_finite: f64,
    /// Share of the sample requests that are refused with status 429.
    pub too_many_requests: f64,
    /// Share of all requests that are refused with status 503.
    pub unavailable: f64,
    /// Share of the sample requests whose results are gone, with status 410.
    pub gone: f64,
    /// Share of all requests whose connections break in the middle of the response.
    pub resets: f64,
    /// Time windows in which the service does not answer or is slow.
    #[schemars(with = "Vec<ServiceFaultTable>")]
    pub faults: Vec<ServiceFaultSetting>,
    /// Time windows in which every request is refused with status 503.
    pub outages: Vec<OutageWindow>,
}

/// A time window in which every request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutageWindow {
    /// Start of the window, in seconds from the start of the service.
    pub at_s: f64,
    /// Length of the window in seconds.
    pub for_s: f64,
}

impl Default for SimulatedServiceFile {
    fn default() -> Self {
        Self {
            base_model: TINY_RANDOM.into(),
            context: 32_768,
            vocab: 256,
            alphabet: [b'!'.into(), b'~'.into()],
            seed: 0,
            sample: LatencySetting::constant(1.0),
            tokens: 64,
            tokens_per_second: None,
            sampling_slots: None,
            max_sample_requests: MAX_SAMPLE_REQUESTS,
            query: LatencySetting::constant(0.1),
            forward_backward: LatencySetting::constant(0.2),
            datum_s: 0.002,
            token_s: 0.0,
            optim_step: LatencySetting::constant(0.1),
            export: LatencySetting::constant(0.3),
            save: LatencySetting::constant(0.3),
            cycle_s: 0.0,
            warm_up_steps: 5,
            cool_down_steps: 0,
            failures: 0.0,
            hangs: 0.0,
            not_finite: 0.0,
            too_many_requests: 0.0,
            unavailable: 0.0,
            gone: 0.0,
            resets: 0.0,
            faults: Vec::new(),
            outages: Vec::new(),
        }
    }
}

impl SimulatedServiceFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file cannot be read, is not valid TOML, or has a key or a value that is not valid; the error names the line.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let (table, locations) = document(path)?;
        let file: Self = typed(table, &locations, &schema_of::<Self>())?;
        file.check().map_err(|wrong| locations.wrong(&wrong.key, wrong.problem))?;
        Ok(file)
    }

    fn check(&self) -> Result<(), KeyProblem> {
        self.check_model()?;
        self.check_shares()?;
        self.check_times()?;
        at_most("max_sample_requests", self.max_sample_requests, MOST_REQUESTS)?;
        at_most("warm_up_steps", self.warm_up_steps, MOST_STEPS)?;
        at_most("cool_down_steps", self.cool_down_steps, MOST_STEPS)?;
        Ok(())
    }

    /// Refuses sizes that no model has, and samples that would not fit into them.
    fn check_model(&self) -> Result<(), KeyProblem> {
        if self.base_model.trim().is_empty() {
            let problem = "is empty: name the model whose tokenizer clients load, such as `tiny-random`";
            return Err(KeyProblem::new("base_model", problem));
        }
        let vocab = self.vocab;
        ensure(
            "vocab",
            vocab,
            (2..=MOST_VOCAB).contains(&vocab),
            format_args!("lie between 2 and {MOST_VOCAB}"),
        )?;
        self.check_alphabet()?;
        let least = minds_simulation::fewest_tokens(self.alphabet()) + 1;
        let must = format_args!(
            "lie between {least}, which one token of a prompt and the shortest sample need, and {MOST_CONTEXT}"
        );
        ensure("context", self.context, (least..=MOST_CONTEXT).contains(&self.context), must)?;
        let fits = (1..=self.context).contains(&self.tokens);
        let must = format_args!("lie between 1 and `context`, which is {}", self.context);
        ensure("tokens", self.tokens, fits, must)?;
        Ok(())
    }

    fn check_alphabet(&self) -> Result<(), KeyProblem> {
        let [first, last] = self.alphabet;
        let problem = if first >= last {
            Some("the first token must be smaller than the last one".to_owned())
        } else if last as usize >= self.vocab {
            Some(format!("both tokens must be below `vocab`, which is {}", self.vocab))
        } else {
            // Tokenizers of other models are not read here: their stop tokens are refused in requests.
            let stops = (self.base_model == TINY_RANDOM).then(|| ByteTokenizer.stop_tokens());
            let stop = stops.into_iter().flatten().find(|stop| self.alphabet().contains(stop));
            stop.map(|stop| format!("no stop token may lie between them, and {stop} is one of {TINY_RANDOM}"))
        };
        match problem {
            Some(problem) => Err(KeyProblem::new("alphabet", format!("is [{first}, {last}]; {problem}"))),
            None => Ok(()),
        }
    }

    /// Refuses shares out of range, and shares of the same requests that are above 1 together.
    fn check_shares(&self) -> Result<(), KeyProblem> {
        for (key, share) in [
            ("failures", self.failures),
            ("hangs", self.hangs),
            ("not_finite", self.not_finite),
            ("too_many_requests", self.too_many_requests),
            ("unavailable", self.unavailable),
            ("gone", self.gone),
            ("resets", self.resets),
        ] {
            ensure_number(key, share, (0.0..1.0).contains(&share), "lie in [0, 1)")?;
        }
        at_most_whole(&[("hangs", self.hangs), ("failures", self.failures)])?;
        at_most_whole(&[
            ("unavailable", self.unavailable),
            ("resets", self.resets),
            ("too_many_requests", self.too_many_requests),
            ("gone", self.gone),
        ])
    }

    fn check_times(&self) -> Result<(), KeyProblem> {
        let times = [("datum_s", self.datum_s), ("token_s", self.token_s), ("cycle_s", self.cycle_s)];
        let times = times.map(|(key, seconds)| (key.to_owned(), seconds));
        let outages = self.outages.iter().enumerate().flat_map(|(number, outage)| {
            let key = |name: &str| format!("outages[{number}].{name}");
            [(key("at_s"), outage.at_s), (key("for_s"), outage.for_s)]
        });
        for (key, seconds) in times.into_iter().chain(outages) {
            let holds = (0.0..=MOST_SECONDS).contains(&seconds);
            ensure_number(key, seconds, holds, format_args!("lie between 0 and {MOST_SECONDS}"))?;
        }
        if let Some(rate) = self.tokens_per_second {
            let holds = rate > 0.0 && rate <= MOST_SECONDS;
            let must = format_args!("be above 0 and at most {MOST_SECONDS}");
            ensure_number("tokens_per_second", rate, holds, must)?;
        }
        Ok(())
    }

    /// The tokens that samples consist of.
    fn alphabet(&self) -> Range<Token> {
        self.alphabet[0]..self.alphabet[1] + 1
    }

    /// The scripted service, without its hooks.
    #[must_use]
    pub fn options(&self) -> SimulationOptions {
        SimulationOptions {
            info: ServiceInfo {
                name: "simulated".into(),
                base_model: self.base_model.clone(),
                context: self.context,
                vocab: self.vocab,
                topk_prompt_logprobs: true,
            },
            seed: self.seed,
            sample: *self.sample,
            completion_tokens: self.tokens,
            tokens_per_second: self.tokens_per_second,
            alphabet: self.alphabet(),
            numbered: true,
            sampling_slots: self.sampling_slots,
            query: *self.query,
            forward_backward: *self.forward_backward,
            pass_time: PassTime::PerDatum { datum: self.datum_s, token: self.token_s },
            optim_step: *self.optim_step,
            export: *self.export,
            save: *self.save,
            cycle: Duration::from_secs_f64(self.cycle_s),
            one_queue: true,
            failures: self.failures,
            hangs: self.hangs,
            not_finite: self.not_finite,
            faults: self.faults.iter().map(|fault| fault.0).collect(),
            ..SimulationOptions::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_name_every_key() {
        let docs = include_str!("../../docs/benchmark.md");
        let schema = schema_of::<SimulatedServiceFile>();
        for key in schema["properties"].as_object().unwrap().keys() {
            assert!(docs.contains(&format!("`{key}`")) || docs.contains(&format!("`[[{key}]]`")), "{key}");
        }
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(SimulatedServiceFile::default().check(), Ok(()));
    }
}
