//! The `[budget]` table: what a run may cost, and where the prices come from.

use super::error::KeyProblem;
use super::file::BudgetConfig;
use super::service::ServicePlan;
use minds_core::number::ShortNumber;
use std::path::PathBuf;

/// Cap of a run and source of its prices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BudgetPlan {
    /// Most USD that the whole run may cost.
    pub max_usd: Option<f64>,
    /// File with prices; without one, those of the hosted service come from Tinker's published list.
    pub prices: Option<PathBuf>,
}

impl BudgetPlan {
    /// Checks the table.
    ///
    /// # Errors
    /// The cap is not a positive number, or the service bills nothing.
    pub(super) fn decide(budget: &BudgetConfig, service: &ServicePlan) -> Result<Self, KeyProblem> {
        let BudgetConfig { max_usd, prices } = budget.clone();
        if let Some(usd) = max_usd.filter(|usd| !(usd.is_finite() && *usd > 0.0)) {
            return Err(KeyProblem::new(
                "budget.max_usd",
                format!("is {}; it must be above 0", ShortNumber(usd)),
            ));
        }
        if max_usd.is_some() && service.engine().is_some() {
            let problem = "has no effect on the embedded engine, which bills nothing: leave it out";
            return Err(KeyProblem::new("budget.max_usd", problem));
        }
        Ok(Self { max_usd, prices })
    }
}
