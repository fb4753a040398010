//! What requests to a service have cost, for the user.

use minds_stages::usage::usage_meter::UsageMeter;
use serde_json::{Value, json};

/// Counts and price as one line, if the service bills anything.
pub fn cost_line(usage: &UsageMeter) -> Option<String> {
    let counts = usage.counts()?;
    let tokens = counts.most();
    let usd = usage.usd(&counts).map_or_else(|| "price unknown".into(), |usd| format!("{usd:.4} USD"));
    Some(format!(
        "cost         {usd}: {} tokens prefilled, {} cached, {} sampled, {} trained",
        tokens.prefill_uncached, tokens.prefill_cached, tokens.sampled, tokens.trained
    ))
}

/// The same for programs; `usd` is `null` where the prices are unknown.
pub fn cost_json(usage: &UsageMeter) -> Option<Value> {
    let counts = usage.counts()?;
    Some(json!({ "usd": usage.usd(&counts), "tokens": counts.most() }))
}
