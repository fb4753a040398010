//! Recognizes samples in training data: all tokens of a sample are functions of its number, so they are not kept.

use crate::numbered::{TrainedData, TrainedSample};
use crate::state::{DrawKind, SimulationState};
use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::Token;
use rand::RngExt as _;

impl SimulationState {
    /// The first `count` tokens of a numbered sample, without its stop token.
    pub fn numbered_tokens(&self, number: u64, count: usize) -> Vec<Token> {
        let mut tokens = self.numbers.encode(number);
        let mut random = self.chance(DrawKind::Tokens, [number, 0]);
        tokens.resize_with(count.max(tokens.len()), || random.random_range(self.options.alphabet.clone()));
        tokens.truncate(count);
        tokens
    }

    /// Recognizes the samples in the data of a pass under weights of this number of optimizer steps.
    pub fn trained(&self, data: &[Datum], steps: u64) -> TrainedData {
        let mut trained = TrainedData {
            data: data.len(),
            tokens: data.iter().map(Datum::len).sum(),
            ..TrainedData::default()
        };
        for datum in data {
            // Without logprobs, nothing shows which tokens were sampled.
            let LossInputs::Policy { logprobs, .. } = datum.inputs() else { continue };
            let mut from = 0;
            while let Some(ahead) = logprobs[from..].iter().position(|logprob| *logprob != 0.0) {
                from += ahead;
                let sampled = logprobs[from..].iter().take_while(|logprob| **logprob != 0.0).count();
                let span = from..from + sampled;
                match self.recognize(&datum.targets()[span.clone()], &logprobs[span.clone()], steps) {
                    Some(sample) => {
                        from += sample.tokens as usize;
                        trained.samples.push(sample);
                    }
                    None => {
                        from = span.end;
                        trained.unknown += 1;
                    }
                }
            }
        }
        trained
    }

    /// The sample that these tokens begin with, if all of its tokens follow, with their logprobs.
    fn recognize(&self, tokens: &[Token], logprobs: &[f32], steps: u64) -> Option<TrainedSample> {
        let number = self.numbers.decode(tokens)?;
        let index = usize::try_from(number).ok()?;
        let record = *self.records().get(index)?;
        let count = record.tokens as usize;
        let mut expected = self.numbered_tokens(number, count - usize::from(record.stop.is_some()));
        expected.extend(record.stop);
        // Newer weights have larger logprobs.
        let drawn = Self::logprob(record.oldest)..=Self::logprob(record.newest);
        let same = tokens.get(..count)? == expected
            && logprobs.get(..count)?.iter().all(|logprob| drawn.contains(logprob));
        let again = same.then(|| std::mem::replace(&mut self.records()[index].trained, true))?;
        let staleness = steps.saturating_sub(record.oldest);
        let token_staleness = (steps * u64::from(record.tokens)).saturating_sub(record.steps);
        Some(TrainedSample { number, tokens: record.tokens, staleness, token_staleness, again })
    }
}
