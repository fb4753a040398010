//! Prices of the model's tokens: from a file, or from the list that Tinker publishes.

use super::service::{ModelService, service};
use crate::config::RunPlan;
use crate::config::error::ConfigError;
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::regular_file;
use anyhow::Context as _;
use minds_core::usage::TokenPrices;
use minds_models::{ModelCache, PRICE_LIST_URL};
use minds_stages::usage::usage_meter::{UsageCounts, UsageMeter};
use minds_tinker::types::FinishReason;
use std::path::PathBuf;

/// Prices of the model, or why they are unknown.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPrices {
    /// Prices, where they are known.
    pub prices: Option<TokenPrices>,
    /// Why there are none, for the user; absent where nothing is billed.
    pub note: Option<String>,
}

impl ModelPrices {
    fn unknown(note: Option<String>) -> Self {
        Self { prices: None, note }
    }
}

/// Opens the service of a plan, whose requests are counted from the first on: `used` was spent before. Prices are found at
/// the same time, because the published list may take seconds.
///
/// # Errors
/// Those of [`prices`] and of [`service`].
pub fn metered_service(
    plan: &mut RunPlan,
    state_dir: Option<PathBuf>,
    used: UsageCounts,
) -> Result<ModelService, CommandError> {
    let shared = &*plan;
    let (prices, ready) = std::thread::scope(|scope| {
        let prices = scope.spawn(|| prices(shared, false));
        let ready = service(shared, state_dir);
        (prices.join(), ready)
    });
    let prices = prices.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (ModelPrices { prices, note }, mut ready) = match (prices, ready) {
        (Ok(prices), Ok(ready)) => (prices, ready),
        (Ok(_), Err(error)) => return Err(error),
        (Err(error), ready) => {
            if let Ok(ready) = ready {
                ready.close(FinishReason::Errored);
            }
            return Err(error).or_exit(ProcessExit::Config);
        }
    };
    plan.warnings.extend(note);
    ready.meter(UsageMeter::new(used, prices, plan.budget.max_usd));
    Ok(ready)
}

/// Finds the prices of the plan's model; `offline` sends no request.
///
/// # Errors
/// The file of `budget.prices` cannot be used, or there is a cap and the model has no price.
pub fn prices(plan: &RunPlan, offline: bool) -> Result<ModelPrices, ConfigError> {
    if plan.service.engine().is_some() {
        return Ok(ModelPrices::unknown(None));
    }
    let found = match &plan.budget.prices {
        Some(path) => {
            let text = regular_file::read_text(path).context("cannot be read");
            let prices = text
                .and_then(|text| TokenPrices::in_list(&text, &plan.base_model).map_err(anyhow::Error::msg));
            match prices {
                Ok(Some(prices)) => Ok(prices),
                Ok(None) => Err(format!("{} has no entry for {}", path.display(), plan.base_model)),
                Err(error) => {
                    let problem = format!("is wrong: {} {error:#}", path.display());
                    return Err(plan.wrong("budget.prices", problem));
                }
            }
        }
        None if plan.service.is_hosted() => published(plan, offline),
        None => {
            Err("the prices of this server are not published: name a file with them in `budget.prices`"
                .into())
        }
    };
    match (found, plan.budget.max_usd) {
        (Ok(prices), _) => Ok(ModelPrices { prices: Some(prices), note: None }),
        (Err(why), Some(_)) => {
            let problem = format!("needs the price of {}, which is unknown: {why}", plan.base_model);
            Err(plan.wrong("budget.max_usd", problem))
        }
        (Err(why), None) => {
            let note = format!("tokens are counted, and their price in USD is unknown: {why}");
            Ok(ModelPrices::unknown(Some(note)))
        }
    }
}

/// Prices in the published list, or in its last copy.
fn published(plan: &RunPlan, offline: bool) -> Result<TokenPrices, String> {
    let list = minds_models::price_list(&ModelCache::from_env(), offline)
        .map_err(|error| format!("{PRICE_LIST_URL}: {error}"))?;
    match TokenPrices::in_list(&list, &plan.base_model) {
        Ok(prices) => prices.ok_or_else(|| format!("{PRICE_LIST_URL} has no entry for {}", plan.base_model)),
        Err(problem) => Err(format!("{PRICE_LIST_URL} {problem}")),
    }
}
