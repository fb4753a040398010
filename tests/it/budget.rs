//! Runs against a server with prices, which counts by itself what it bills.

use crate::command::{checkpoints, config, metrics, output, run, steps};
use async_trait::async_trait;
use minds_core::architecture::Architecture;
use minds_core::datum::Datum;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SampleResponse};
use minds_core::service::{
    BackendError, Export, ForwardOutput, OptimStep, Pending, SamplingBackend, Service, ServiceInfo,
    TrainingBackend,
};
use minds_engine::embedded::EmbeddedService;
use minds_engine::model::Model;
use minds_engine::runtime::EngineOptions;
use minds_models::ByteTokenizer;
use minds_server::{PlainService, ServerOptions, serve};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;
use tokio::net::TcpListener;

/// Micro-USD per token of prefill, cached prefill, sampling and training: powers of two, so that sums are exact.
const PREFILL: u64 = 128;
const CACHED: u64 = 16;
const SAMPLE: u64 = 512;
const TRAIN: u64 = 256;

/// The same prices as a list.
const PRICES: &str = r#"[{"tinker_id": "tiny-random", "prefill": "$128.00", "cached_prefill": "$16.00",
                          "sample": "$512.00", "train": "$256.00"}]"#;

/// A service with a bill in micro-USD.
struct Billed<T: ?Sized> {
    bill: Arc<AtomicU64>,
    inner: Arc<T>,
}

impl<T: ?Sized> Billed<T> {
    fn sampler(&self, inner: Arc<dyn SamplingBackend>) -> Arc<dyn SamplingBackend> {
        Arc::new(Billed { bill: self.bill.clone(), inner })
    }
}

#[async_trait]
impl SamplingBackend for Billed<dyn SamplingBackend> {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let mut micro_usd = 0;
        let prompt = request.prompt.len() as u64;
        let others = request.num_samples as u64 - 1;
        let response = self.inner.sample(request).await?;
        let hits = response.cached_prompt_tokens as u64;
        micro_usd += PREFILL * (prompt - hits);
        micro_usd += CACHED * (hits + others * prompt);
        for sequence in &response.sequences {
            micro_usd += SAMPLE * sequence.tokens.len() as u64;
        }
        self.bill.fetch_add(micro_usd, Ordering::SeqCst);
        Ok(response)
    }
}

impl TrainingBackend for Billed<dyn TrainingBackend> {
    fn forward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.inner.forward(data, loss)
    }

    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        let tokens: usize = data.iter().map(|datum| datum.input().len()).sum();
        let pass = self.inner.forward_backward(data, loss);
        let bill = self.bill.clone();
        Box::pin(async move {
            let output = pass.await?;
            bill.fetch_add(TRAIN * tokens as u64, Ordering::SeqCst);
            Ok(output)
        })
    }

    fn optim_step(&self, params: AdamParams) -> Pending<OptimStep> {
        self.inner.optim_step(params)
    }

    fn save_state(&self, name: &str) -> Pending<String> {
        self.inner.save_state(name)
    }

    fn load_state(&self, path: &str, with_optimizer: bool) -> Pending<()> {
        self.inner.load_state(path, with_optimizer)
    }

    fn export_sampler(&self, name: Option<&str>) -> Pending<Export> {
        let export = self.inner.export_sampler(name);
        let bill = self.bill.clone();
        Box::pin(async move {
            let Export { sampler, path } = export.await?;
            Ok(Export { sampler: Arc::new(Billed { bill, inner: sampler }), path })
        })
    }
}

#[async_trait]
impl Service for Billed<dyn Service> {
    fn info(&self) -> ServiceInfo {
        self.inner.info()
    }

    async fn create_training(&self, spec: LoraSpec) -> Result<Arc<dyn TrainingBackend>, BackendError> {
        let inner = self.inner.create_training(spec).await?;
        Ok(Arc::new(Billed { bill: self.bill.clone(), inner }))
    }

    async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Ok(self.sampler(self.inner.base_sampler().await?))
    }

    async fn sampler_from(&self, path: &str) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Ok(self.sampler(self.inner.sampler_from(path).await?))
    }

    async fn delete(&self, path: &str) -> Result<(), BackendError> {
        self.inner.delete(path).await
    }
}

/// Starts the server in this process; returns its address. It ends with the runtime.
async fn start(folder: &Path, bill: Arc<AtomicU64>) -> String {
    let model = Arc::new(Model::random(Architecture::tiny(), 0).unwrap());
    let options = EngineOptions {
        threads: Some(2.try_into().unwrap()),
        checkpoint_dir: Some(folder.into()),
        ..EngineOptions::new("tiny-random")
    };
    let engine = EmbeddedService::start(model, Some(Arc::new(ByteTokenizer)), &options).unwrap();
    let inner: Arc<dyn Service> = Arc::new(engine);
    let service = Arc::new(PlainService::new(Arc::new(Billed { bill, inner })));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let options = ServerOptions::new(|| UNIX_EPOCH);
    tokio::spawn(serve(listener, service, options, std::future::pending()));
    url
}

/// Micro-USD of the counts in the run folder; nothing is unconfirmed.
fn counted(folder: &Path) -> u64 {
    let text = std::fs::read_to_string(folder.join("usage.json")).unwrap();
    let counts: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tokens = |kind: &str| {
        assert_eq!(counts["unconfirmed"][kind], 0, "{counts}");
        counts["billed"][kind].as_u64().unwrap()
    };
    PREFILL * tokens("prefill_uncached")
        + CACHED * tokens("prefill_cached")
        + SAMPLE * tokens("sampled")
        + TRAIN * tokens("trained")
}

#[test]
fn a_run_stops_below_its_cap_resumes_above_it_and_counts_what_the_server_bills() {
    let dir = tempfile::tempdir().unwrap();
    let prices = dir.path().join("prices.json");
    std::fs::write(&prices, PRICES).unwrap();
    let bill = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = runtime.block_on(start(&dir.path().join("data"), bill.clone()));
    let folder = dir.path().join("run");
    let train = |max_usd: &str| {
        let mut command = run(&config("ci_test.toml"), &folder, &["--max-steps", "8"]);
        let prices = format!("budget.prices='{}'", prices.display());
        let url = format!("tinker.base_url={url}");
        let cap = format!("budget.max_usd={max_usd}");
        for set in [url.as_str(), &prices, &cap, "metrics.addr=\"off\""] {
            command.args(["--set", set]);
        }
        output(&mut command)
    };
    let cap_micro_usd = 1_000_000;
    let (status, stdout, stderr) = train("1.0");
    assert_eq!(status, Some(4), "{stdout}{stderr}");
    assert!(stderr.contains("`[budget] max_usd` = 1") && stderr.contains("--output-dir"), "{stderr}");
    let first_bill = bill.load(Ordering::SeqCst);
    assert!(first_bill > 0 && first_bill <= cap_micro_usd, "{first_bill}");
    assert_eq!(counted(&folder), first_bill);
    let before = checkpoints(&folder).pop().unwrap()["step"].as_u64().unwrap();
    assert!((1..8).contains(&before), "stopped after {before} steps\n{stdout}");

    let (status, stdout, stderr) = train("1000.0");
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    assert_eq!(steps(&folder), [1, 2, 3, 4, 5, 6, 7, 8]);
    let whole_bill = bill.load(Ordering::SeqCst);
    assert!(whole_bill > first_bill);
    assert_eq!(counted(&folder), whole_bill);
    let rows = metrics(&folder);
    let sums: Vec<f64> = rows.iter().map(|row| row["cost/cumulative_usd"]).collect();
    assert!(sums.is_sorted() && *sums.last().unwrap() <= whole_bill as f64 / 1e6, "{sums:?}");
    // The first step of the resumed run includes what the first part spent after its last step.
    assert!(sums[before as usize] > first_bill as f64 / 1e6, "{sums:?} after {first_bill}");
    // A step's numbers are what was counted since the step before, so the pass of the next one may be among them.
    let trained: f64 = rows.iter().map(|row| row["tokens/billed/trained"]).sum();
    assert!(trained > 0.0, "{rows:?}");
}

#[test]
fn a_cap_without_the_price_of_the_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let prices = dir.path().join("prices.json");
    std::fs::write(&prices, r#"[{"tinker_id": "another/model"}]"#).unwrap();
    let prices = format!("budget.prices='{}'", prices.display());
    let sets = ["--set", "tinker.base_url=http://127.0.0.1:9", "--set", "budget.max_usd=1.0"];
    let mut command = run(&config("ci_test.toml"), &dir.path().join("run"), &sets);
    let (status, _, stderr) = output(command.args(["--set", &prices]));
    assert_eq!(status, Some(2), "{stderr}");
    assert!(stderr.contains("budget.max_usd") && stderr.contains("no entry for tiny-random"), "{stderr}");
}

#[test]
fn an_evaluation_tells_what_it_cost_and_ends_at_the_cap() {
    let dir = tempfile::tempdir().unwrap();
    let prices = dir.path().join("prices.json");
    std::fs::write(&prices, PRICES).unwrap();
    let bill = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = runtime.block_on(start(&dir.path().join("data"), bill.clone()));
    let eval = |extra: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
        command.arg("eval").arg(config("ci_test.toml")).args(extra).env("MINDS_LOG", "error");
        let prices = format!("budget.prices='{}'", prices.display());
        let url = format!("tinker.base_url={url}");
        for set in [&url, &prices, "eval.episodes=4"] {
            command.args(["--set", set]);
        }
        output(&mut command)
    };
    let (status, stdout, stderr) = eval(&["--json"]);
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    let result: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let billed = bill.swap(0, Ordering::SeqCst);
    let told = (result["cost"]["usd"].as_f64().unwrap() * 1e6).round() as u64;
    assert!(billed > 0 && told == billed, "{result} and a bill of {billed}");

    let (status, stdout, stderr) = eval(&["--set", "budget.max_usd=0.02"]);
    assert_eq!(status, Some(4), "{stdout}{stderr}");
    assert!(stderr.contains("`[budget] max_usd`") && stdout.contains("cost  "), "{stdout}{stderr}");
    assert!(bill.load(Ordering::SeqCst) <= 20_000);
}
