//! Records what a simulated service is asked.

use minds_core::datum::Datum;
use minds_core::ids::Token;
use minds_core::optim::AdamParams;
use minds_core::sampling::StopReason;
use minds_core::service::ForwardOutput;
use minds_simulation::{
    AdapterRequest, RequestHook, RequestProgress, ServiceRequest, SimulatedService, SimulationOptions,
};
use std::sync::{Arc, Mutex, Weak};
use tokio::time::Instant;

/// A script that changes the logprobs of passes with gradients.
pub fn trained(
    change: impl Fn(usize, &mut Vec<Vec<f32>>) + Send + Sync + 'static,
) -> RequestHook<ForwardOutput> {
    Box::new(move |number, pass| {
        change(number, &mut pass.logprobs);
        Ok(())
    })
}

/// A sample request as the service saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Steps behind the weights that were asked.
    pub version: u64,
    pub seed: u64,
    pub samples: usize,
    pub max_tokens: usize,
    pub prompt: Arc<[Token]>,
    pub at: Instant,
}

#[derive(Default)]
pub struct ServiceRecord {
    asked: Mutex<Vec<Asked>>,
    /// Requests to adapters, in the order of the calls.
    adapters: Mutex<Vec<(usize, AdapterRequest)>>,
    /// The prompts of all sample requests that are still referenced elsewhere.
    pub prompts: Mutex<Vec<Weak<[Token]>>>,
}

impl ServiceRecord {
    /// Starts a service and its record, which keeps prompts and data if it shall `remember`. Samples are `a.`, `b.` and
    /// so on, with the logprobs -0.5 and -0.25, and are trained with -0.5; scripts see and change that. Those of in-flight
    /// weights stay as the service drew them.
    pub fn start(mut options: SimulationOptions, remember: bool) -> (Arc<SimulatedService>, Arc<Self>) {
        let record = Arc::new(Self::default());
        options.info.vocab = usize::MAX;
        let on_sample = options.on_sample;
        options.on_sample = Box::new(move |number, request, sequences| {
            let fixed = sequences.iter_mut().filter(|sequence| sequence.versions.is_empty());
            for (sequence, letter) in fixed.zip(Token::from(b'a')..) {
                sequence.tokens = vec![letter, Token::from(b'.')];
                sequence.logprobs = vec![-0.5, -0.25];
                sequence.stop = StopReason::Stop;
            }
            on_sample(number, request, sequences)
        });
        let on_pass = options.on_pass;
        options.on_pass = Box::new(move |number, pass| {
            pass.logprobs.iter_mut().flatten().for_each(|logprob| *logprob = -0.5);
            on_pass(number, pass)
        });
        let observer = options.observer;
        let seen = record.clone();
        options.observer = Box::new(move |request, progress| {
            observer(request, progress);
            if progress == RequestProgress::Arrived {
                seen.enter(request, remember);
            }
        });
        (Arc::new(SimulatedService::new(options)), record)
    }

    fn enter(&self, request: ServiceRequest<'_>, remember: bool) {
        match request {
            ServiceRequest::Sample(version, request) => {
                self.prompts.lock().unwrap().push(Arc::downgrade(&request.prompt));
                self.asked.lock().unwrap().push(Asked {
                    version,
                    seed: request.params.seed.unwrap(),
                    samples: request.num_samples,
                    max_tokens: request.params.max_tokens,
                    prompt: if remember { request.prompt.clone() } else { Arc::default() },
                    at: Instant::now(),
                });
            }
            ServiceRequest::Adapter(adapter, request) if remember => {
                self.adapters.lock().unwrap().push((adapter, request.clone()));
            }
            _ => {}
        }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn of_adapter<T>(&self, adapter: usize, read: impl Fn(&AdapterRequest) -> Option<T>) -> Vec<T> {
        let requests = self.adapters.lock().unwrap();
        requests.iter().filter(|(of, _)| *of == adapter).filter_map(|(_, request)| read(request)).collect()
    }

    /// The requests of an adapter.
    pub fn calls(&self, adapter: usize) -> Vec<String> {
        self.of_adapter(adapter, |request| {
            Some(match request {
                AdapterRequest::Forward(_) => "forward".into(),
                AdapterRequest::ForwardBackward(_) => "fb".into(),
                AdapterRequest::OptimStep(_) => "optim".into(),
                AdapterRequest::SaveState(name) => format!("save {name}"),
                AdapterRequest::LoadState(path, with_optimizer) => format!("load {path} {with_optimizer}"),
                AdapterRequest::Export(name) => format!("export {}", name.as_deref().unwrap_or("-")),
                AdapterRequest::PublishInFlight(version) => format!("publish {version}"),
                AdapterRequest::Release => "release".into(),
            })
        })
    }

    /// The data of every forward_backward of the first adapter.
    pub fn data(&self) -> Vec<Vec<Datum>> {
        self.of_adapter(0, |request| match request {
            AdapterRequest::ForwardBackward(data) => Some(data.clone()),
            _ => None,
        })
    }

    /// The settings of every optimizer step of the first adapter.
    pub fn adam(&self) -> Vec<AdamParams> {
        self.of_adapter(0, |request| match request {
            AdapterRequest::OptimStep(adam) => Some(*adam),
            _ => None,
        })
    }
}
