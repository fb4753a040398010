//! Requests that are not sent because of the cap, and requests that the service denies to the account.

use crate::testkit::ServiceRecord;
use futures::FutureExt as _;
use minds_core::datum::Datum;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::service::{BackendError, DenialReason, Service, TrainingBackend};
use minds_core::usage::TokenPrices;
use minds_simulation::SimulationOptions;
use minds_stages::usage::metered::{PassReservation, metered};
use minds_stages::usage::usage_meter::{RequestStop, UsageCounts, UsageMeter};
use std::sync::Arc;
use std::time::Duration;

/// A USD for each trained token, and nothing for the others.
const PRICES: TokenPrices = TokenPrices { prefill: 0.0, cached_prefill: 0.0, sample: 0.0, train: 1e6 };

fn text() -> Vec<Datum> {
    vec![Datum::supervised(&[1, 2, 3], &[4, 5]).unwrap()]
}

async fn adapter(
    options: SimulationOptions,
    meter: &UsageMeter,
    passes: PassReservation,
) -> Arc<dyn TrainingBackend> {
    let (service, _) = ServiceRecord::start(options, false);
    let service: Arc<dyn Service> = metered(service, meter.clone(), passes);
    service.create_training(LoraSpec::all_linear(4, 1)).await.unwrap()
}

/// The datum has four inputs: of five tokens, the last is only a target.
#[tokio::test(start_paused = true)]
async fn a_measured_step_that_does_not_fit_is_not_sent_and_stops_the_requests() {
    let meter = UsageMeter::new(UsageCounts::default(), Some(PRICES), Some(7.0));
    let training = adapter(SimulationOptions::default(), &meter, PassReservation::ByPass).await;
    training.forward_backward(text(), Loss::CrossEntropy).await.unwrap();
    assert_eq!(meter.usd(&meter.counts().unwrap()), Some(4.0));
    assert!(meter.stopped().now_or_never().is_none());
    let second = training.forward_backward(text(), Loss::CrossEntropy);
    assert_eq!(meter.stopped().now_or_never(), Some(RequestStop::Cap));
    let waited = tokio::time::timeout(Duration::from_secs(3600), second).await;
    assert!(waited.is_err(), "its reward waits until the run has ended");
    assert_eq!(meter.usd(&meter.counts().unwrap()), Some(4.0));
}

#[tokio::test(start_paused = true)]
async fn a_denied_pass_is_an_error_to_the_trainer_alone() {
    let denied = || BackendError::Denied { reason: DenialReason::Credit, detail: "pay".into() };
    for passes in [PassReservation::ByTrainer, PassReservation::ByPass] {
        let options = SimulationOptions {
            on_pass: Box::new(move |_, _| Err(denied())),
            ..SimulationOptions::default()
        };
        let meter = UsageMeter::new(UsageCounts::default(), Some(PRICES), None);
        let training = adapter(options, &meter, passes).await;
        let pass = training.forward_backward(text(), Loss::CrossEntropy);
        let result = tokio::time::timeout(Duration::from_secs(3600), pass).await;
        match passes {
            PassReservation::ByTrainer => assert_eq!(result, Ok(Err(denied()))),
            PassReservation::ByPass => assert!(result.is_err()),
        }
        assert_eq!(meter.stopped().now_or_never(), Some(RequestStop::Denied(denied())));
        assert_eq!(meter.usd(&meter.counts().unwrap()), Some(0.0), "a denied request is not billed");
    }
}
