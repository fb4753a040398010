//! The file of `serve --simulated`: the model that a scripted service announces, its times, capacities and faults.

use super::latency::{LatencySetting, MOST_SECONDS};
use super::simulate::FaultSetting;
use anyhow::{Context as _, anyhow, ensure};
use minds_core::ids::Token;
use minds_core::service::ServiceInfo;
use minds_models::TINY_RANDOM;
use minds_simulation::{PassTime, SimulationOptions};
use serde::Deserialize;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

/// What the official SDK takes if a server does not say it.
const MAX_SAMPLE_REQUESTS: NonZeroUsize = NonZeroUsize::new(2000).expect("2000 is not 0");

/// Behavior of a scripted service. Keys that `[simulate]` has too mean the same here.
#[derive(Clone, Debug, PartialEq, Deserialize)]
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
    pub faults: Vec<FaultSetting>,
    /// Time windows in which every request is refused with status 503.
    pub outages: Vec<OutageWindow>,
}

/// A time window in which every request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
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
    /// The file cannot be read, is not valid TOML, or has a key or a value that is not valid; the error names it.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("failed to read the simulated service {}", path.display()))?;
        let file: Self = toml::from_str(&text).map_err(|error| anyhow!("{}: {error}", path.display()))?;
        file.check().with_context(|| path.display().to_string())?;
        Ok(file)
    }

    fn check(&self) -> anyhow::Result<()> {
        let [first, last] = self.alphabet;
        ensure!(
            first < last && (last as usize) < self.vocab,
            "`alphabet` is [{first}, {last}]; it must be two tokens of the {} in the vocabulary, the first one smaller",
            self.vocab
        );
        ensure!(self.tokens > 0, "`tokens` is 0; it must be at least 1");
        for (key, share) in self.shares() {
            ensure!((0.0..1.0).contains(&share), "`{key}` is {share}; it must lie in [0, 1)");
        }
        let times = [("datum_s", self.datum_s), ("token_s", self.token_s), ("cycle_s", self.cycle_s)];
        let outages = self
            .outages
            .iter()
            .flat_map(|outage| [("outages.at_s", outage.at_s), ("outages.for_s", outage.for_s)]);
        for (key, seconds) in times.into_iter().chain(outages) {
            let holds = (0.0..=MOST_SECONDS).contains(&seconds);
            ensure!(holds, "`{key}` is {seconds}; it must lie between 0 and {MOST_SECONDS}");
        }
        if let Some(rate) = self.tokens_per_second {
            ensure!(
                rate > 0.0 && rate <= MOST_SECONDS,
                "`tokens_per_second` is {rate}; it must be above 0 and at most {MOST_SECONDS}"
            );
        }
        ensure!(
            self.faults.iter().all(|fault| fault.of_service().is_some()),
            "`faults` has what = \"workers\", which only `minds-actors simulate` can do"
        );
        Ok(())
    }

    fn shares(&self) -> [(&'static str, f64); 7] {
        [
            ("failures", self.failures),
            ("hangs", self.hangs),
            ("not_finite", self.not_finite),
            ("too_many_requests", self.too_many_requests),
            ("unavailable", self.unavailable),
            ("gone", self.gone),
            ("resets", self.resets),
        ]
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
            alphabet: self.alphabet[0]..self.alphabet[1] + 1,
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
            faults: self.faults.iter().filter_map(FaultSetting::of_service).collect(),
            ..SimulationOptions::default()
        }
    }
}
