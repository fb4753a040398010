//! A measured gradient step against the plain way to make one, on the real engine: copy the adapter, measure, train
//! the copy by one step, measure again.

use crate::command::adapter;
use crate::remote::Served;
use async_trait::async_trait;
use minds_core::architecture::Architecture;
use minds_core::datum::Datum;
use minds_core::environment::Oracle;
use minds_core::ids::{PolicyVersion, Token};
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SamplingParams};
use minds_core::service::{BackendError, SamplingBackend, Service, ServiceInfo, TrainingBackend};
use minds_engine::embedded::EmbeddedService;
use minds_engine::model::Model;
use minds_engine::runtime::EngineOptions;
use minds_stages::policy::Policy;
use minds_stages::policy::QueryBudget;
use minds_stages::policy::{ShadowCheckpoints, ShadowOrigin};
use minds_stages::service::retry::Retry;
use minds_stages::shadow::{ShadowTrainer, ShadowTrainerOptions};
use minds_stages::telemetry::StageBoard;
use minds_stages::telemetry::activity::Activity;
use minds_stages::telemetry::meters::PipelineMeters;
use minds_tinker::client::{ClientOptions, Secret};
use minds_tinker::{RemoteOptions, RemoteService};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, Weak};
use tokio::task::LocalSet;

const ADAPTERS: usize = 3;

fn spec() -> LoraSpec {
    LoraSpec::all_linear(4, 1)
}

fn adam() -> AdamParams {
    AdamParams { learning_rate: 1e-3, ..AdamParams::default() }
}

fn tokens(from: u32, count: u32) -> Vec<Token> {
    (0..count).map(|n| (from * 7 + n * 3) % 97 + 1).collect()
}

fn texts() -> Vec<Datum> {
    (0..10).map(|n| Datum::supervised(&tokens(n, 8), &tokens(n + 40, 5)).unwrap()).collect()
}

fn probes() -> Vec<(Vec<Token>, Vec<Token>)> {
    (0..10).map(|n| (tokens(n + 11, 6), tokens(n + 71, 1 + n % 3))).collect()
}

/// Hands a service out and counts the adapters that are alive through it.
struct Counted {
    inner: Arc<dyn Service>,
    made: Mutex<Vec<Weak<dyn TrainingBackend>>>,
    most: Mutex<usize>,
}

#[async_trait]
impl Service for Counted {
    fn info(&self) -> ServiceInfo {
        self.inner.info()
    }

    async fn create_training(&self, spec: LoraSpec) -> Result<Arc<dyn TrainingBackend>, BackendError> {
        let training = self.inner.create_training(spec).await?;
        let mut made = self.made.lock().unwrap();
        made.push(Arc::downgrade(&training));
        let alive = made.iter().filter(|weak| weak.strong_count() > 0).count();
        let mut most = self.most.lock().unwrap();
        *most = alive.max(*most);
        Ok(training)
    }

    async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        self.inner.base_sampler().await
    }

    async fn sampler_from(&self, path: &str) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        self.inner.sampler_from(path).await
    }

    async fn delete(&self, path: &str) -> Result<(), BackendError> {
        self.inner.delete(path).await
    }
}

async fn summed(sampler: &dyn SamplingBackend, (prefix, target): &(Vec<Token>, Vec<Token>)) -> f64 {
    let all = sampler.logprobs([&prefix[..], target].concat().into()).await.unwrap();
    all[prefix.len()..].iter().map(|lp| f64::from(lp.unwrap())).sum()
}

/// What one step on each text does to each probe.
async fn reference(service: &dyn Service, state: Option<&str>) -> Vec<(f64, f64)> {
    let mut all = Vec::new();
    for text in texts() {
        let copy = service.create_training(spec()).await.unwrap();
        if let Some(state) = state {
            copy.load_state(state, false).await.unwrap();
        }
        let before = copy.export_sampler(None).await.unwrap().sampler;
        copy.forward_backward(vec![text], Loss::CrossEntropy).await.unwrap();
        copy.optim_step(adam()).await.unwrap();
        let after = copy.export_sampler(None).await.unwrap().sampler;
        for probe in probes() {
            all.push((summed(&*before, &probe).await, summed(&*after, &probe).await));
        }
        copy.release().await.unwrap();
    }
    all
}

/// An adapter some steps away from the base model.
async fn policy(service: &dyn Service) -> Arc<dyn TrainingBackend> {
    let training = service.create_training(spec()).await.unwrap();
    for n in 0..5 {
        let data = vec![Datum::supervised(&tokens(n + 90, 6), &tokens(n + 3, 6)).unwrap()];
        training.forward_backward(data, Loss::CrossEntropy).await.unwrap();
        training.optim_step(AdamParams { learning_rate: 1e-2, ..adam() }).await.unwrap();
    }
    training
}

/// A hundred measurements, all asked at once, while the policy is sampled from and computes losses.
async fn measured(
    service: &Arc<dyn Service>,
    training: &dyn TrainingBackend,
    state: Option<&str>,
) -> Vec<(f64, f64)> {
    let counted =
        Arc::new(Counted { inner: service.clone(), made: Mutex::default(), most: Mutex::default() });
    let adapters = NonZeroUsize::new(ADAPTERS).unwrap();
    let options = ShadowTrainerOptions { adapters, lora: spec(), adam: adam(), retry: Retry::default() };
    let (shadow_checkpoints, queries) =
        (ShadowCheckpoints::new(counted.clone()), Arc::new(QueryBudget::default()));
    let (board, activity) = (StageBoard::default(), Activity::default());
    let pool = ShadowTrainer::new(
        options,
        counted.clone(),
        shadow_checkpoints,
        &queries,
        board,
        activity,
        &PipelineMeters::default().service,
    );
    let (_stage, _) = pool.clone().attach(&queries);
    let sampler = training.export_sampler(None).await.unwrap().sampler;
    let origin = state.map(|path| ShadowOrigin::kept(path.into(), sampler.clone()));
    let policy = Policy::new(PolicyVersion(5), sampler.clone(), queries, origin);

    let (texts, probes) = (texts(), probes());
    let pairs = texts.iter().flat_map(|text| probes.iter().map(move |probe| (text, probe)));
    let shifts = pairs.map(|(text, (prefix, target))| {
        policy.oracle.logprob_delta(text.clone(), prefix.clone().into(), target.clone().into())
    });
    let load = (0..40).map(|n| {
        let params = SamplingParams { seed: Some(n), ..SamplingParams::plain(16) };
        let request = SampleRequest::new(tokens(n as u32, 12).into(), 2, params);
        let (sampler, forward) = (&sampler, training.forward(texts.clone(), Loss::CrossEntropy));
        async move {
            sampler.sample(request).await.unwrap();
            forward.await.unwrap();
        }
    });
    let (shifts, _) =
        futures::future::join(futures::future::join_all(shifts), futures::future::join_all(load)).await;
    pool.close().await;
    assert!(*counted.most.lock().unwrap() <= ADAPTERS);
    assert_eq!(counted.made.lock().unwrap().len(), ADAPTERS, "none was replaced");
    shifts.into_iter().map(|shift| shift.unwrap()).map(|shift| (shift.before, shift.after)).collect()
}

fn compare(measured: &[(f64, f64)], reference: &[(f64, f64)]) {
    assert_eq!((measured.len(), reference.len()), (100, 100));
    for (n, (found, expected)) in measured.iter().zip(reference).enumerate() {
        let error = (found.0 - expected.0).abs().max((found.1 - expected.1).abs());
        assert!(error <= 1e-4, "measurement {n}: {found:?}, and plainly {expected:?}");
    }
    let moved = reference.iter().filter(|(before, after)| (after - before).abs() > 1e-3).count();
    assert!(moved > 50, "the steps changed next to nothing, so the comparison says nothing");
}

fn embedded(states: &std::path::Path) -> Arc<dyn Service> {
    let model = Arc::new(Model::random(Architecture::tiny(), 3).unwrap());
    let threads = NonZeroUsize::new(2);
    let options =
        EngineOptions { threads, checkpoint_dir: Some(states.into()), ..EngineOptions::new("tiny-random") };
    Arc::new(EmbeddedService::start(model, None, &options).unwrap())
}

#[tokio::test]
async fn a_measurement_is_what_a_step_of_a_copy_does_and_the_policy_keeps_its_bits() {
    let dir = tempfile::tempdir().unwrap();
    let service = embedded(&dir.path().join("weights"));
    LocalSet::new()
        .run_until(async {
            let training = policy(&*service).await;
            let before = training.save_state("before").await.unwrap();
            let expected = reference(&*service, Some(&before)).await;
            compare(&measured(&service, &*training, Some(&before)).await, &expected);
            let after = training.save_state("after").await.unwrap();
            assert!(adapter(dir.path(), &before) == adapter(dir.path(), &after), "the policy was touched");
            // From the base model instead, in the same service.
            let expected = reference(&*service, None).await;
            compare(&measured(&service, &*training, None).await, &expected);
        })
        .await;
}

/// The same over HTTP, where weights are passed as checkpoints and models must be released one by one.
#[tokio::test]
async fn a_measurement_on_a_server_is_right_and_leaves_nothing_there() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path());
    let options =
        ClientOptions { api_key: Some(Secret::new(crate::remote::KEY)), ..ClientOptions::new(&served.url) };
    let model = RemoteOptions { base_model: "tiny-random".into(), ..RemoteOptions::default() };
    let remote = RemoteService::connect(&options, model).await.unwrap();
    let client = remote.client().clone();
    let service: Arc<dyn Service> = Arc::new(remote);
    LocalSet::new()
        .run_until(async {
            let training = policy(&*service).await;
            let state = training.save_state("before").await.unwrap();
            let probe: Arc<[Token]> = tokens(5, 60).into();
            let logprobs = || async {
                training.export_sampler(None).await.unwrap().sampler.logprobs(probe.clone()).await.unwrap()
            };
            let before = logprobs().await;
            let expected = reference(&*service, Some(&state)).await;
            compare(&measured(&service, &*training, Some(&state)).await, &expected);
            assert_eq!(before, logprobs().await, "the policy was touched");
            let expected = reference(&*service, None).await;
            compare(&measured(&service, &*training, None).await, &expected);
            let kept: Vec<_> =
                client.checkpoints(None).await.unwrap().into_iter().map(|c| c.tinker_path).collect();
            assert_eq!(kept, [state], "nothing but what the test saved");
        })
        .await;
}
