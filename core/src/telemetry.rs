//! The table of all Prometheus metrics of a run. Whatever counts or reads one takes its name, help text, labels and kind
//! from here; `docs/metrics.md` is made of it.

use MetricKind::{Counter, Gauge, Histogram};

/// A metric as Prometheus and the documentation describe it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetricSpec {
    /// Its name; that of a counter ends in `_total`.
    pub name: &'static str,
    /// Help text, as Prometheus shows it.
    pub help: &'static str,
    /// Names of its labels. Their values are bounded: environments of the config, workers that are there, and words of the
    /// program.
    pub labels: &'static [&'static str],
    /// What can be done with its values.
    pub kind: MetricKind,
    /// What its labels and values tell an operator, in Markdown; may be empty.
    pub reading: &'static str,
}

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// Only grows, from 0 at each start of the process.
    Counter,
    /// The value at this moment.
    Gauge,
    /// Counts of values by upper bound; these are the bounds.
    Histogram(&'static [f64]),
}

/// From 5 ms to 22 min.
const SECONDS: [f64; 19] = doubling(0.005);
/// From 1 ms to 65 s: no server holds a poll longer.
const POLL_SECONDS: [f64; 17] = doubling(0.001);
const REWARDS: [f64; 13] = [-2.0, -1.0, -0.5, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 5.0];
const STEPS: [f64; 10] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0];

/// Bounds of which each is twice the one before.
const fn doubling<const N: usize>(first: f64) -> [f64; N] {
    let mut bounds = [first; N];
    let mut n = 1;
    while n < N {
        bounds[n] = 2.0 * bounds[n - 1];
        n += 1;
    }
    bounds
}

/// Declares the metrics by section of the documentation: constant, kind, name, labels, help text, and how to read it.
macro_rules! metrics {
    ($( $section:literal { $( $spec:ident: $kind:expr, $name:literal [$($label:literal),*] $help:literal $($reading:literal)?; )+ } )+) => {
        $($(
            #[doc = $help]
            pub const $spec: MetricSpec = MetricSpec {
                name: $name,
                help: $help,
                labels: &[$($label),*],
                kind: $kind,
                reading: concat!($($reading)?),
            };
        )+)+

        /// All metrics, by section of the documentation.
        pub const SECTIONS: &[(&str, &[MetricSpec])] = &[$( ($section, &[$($spec),+]) ),+];
    };
}

metrics! {
    "The run" {
        BUILD_INFO: Gauge, "minds_build_info" ["version", "commit"]
            "Always 1: the program's version and commit.";
        RUN_INFO: Gauge, "minds_run_info" ["run", "base_model", "service", "loss"]
            "Always 1: run, base model, service and loss."
            "Join on it to name a run.";
        RUN_START_TIMESTAMP_SECONDS: Gauge, "minds_run_start_timestamp_seconds" []
            "Start time of this process."
            "Changes often: the process is restarted, read its last log lines.";
        RUN_STEP: Gauge, "minds_run_step" []
            "Optimizer steps done."
            "Does not grow: see `minds_trainer_idle_seconds_total` and send SIGUSR1.";
        RUN_STEP_TIMESTAMP_SECONDS: Gauge, "minds_run_step_timestamp_seconds" []
            "When the last optimizer step was done; before the first one, the start time of this process."
            "Much longer ago than a step takes: as above.";
        RUN_STEPS: Gauge, "minds_run_steps" []
            "Optimizer steps in all.";
        RUN_MAX_STALENESS_STEPS: Gauge, "minds_run_max_staleness_steps" []
            "Bound on the staleness of rollouts, in steps."
            "`trainer.max_staleness`.";
        RUN_CHECKPOINT_STEP: Gauge, "minds_run_checkpoint_step" []
            "Steps done at the last checkpoint.";
        RUN_CHECKPOINT_TIMESTAMP_SECONDS: Gauge, "minds_run_checkpoint_timestamp_seconds" []
            "When the last checkpoint was saved; before the first one, the start time of this process."
            "Older than what may be lost: lower `trainer.save_every`. Not growing at all: the service \
             cannot save.";
    }
    "The pipeline" {
        PIPELINE_CREDITS: Gauge, "minds_pipeline_credits" ["state"]
            "Credits, each the right to have a group in flight, by state: `used` or `free`."
            "`free` for long: the feeder has nothing to open, which is right only at the end.";
        PIPELINE_GROUPS_OPENED: Counter, "minds_pipeline_groups_opened_total" []
            "Groups opened.";
        PIPELINE_GROUPS_SETTLED: Counter, "minds_pipeline_groups_settled_total" ["outcome"]
            "Finished groups by outcome."
            "`failed` grows: the log names each first cause. `filtered` (no signal) grows: the task is \
             too easy or too hard. `dropped` (too old, or no service answered; the item comes again) \
             grows: raise `max_staleness` or lower `async_off_policy_steps`. Else `trained`.";
        PIPELINE_TOKENS_DISCARDED: Counter, "minds_pipeline_tokens_discarded_total" ["outcome"]
            "Sampled tokens of rollouts that had a reward and were not trained, by the outcome of their group."
            "The price of the outcomes above.";
        PIPELINE_SECONDS: Counter, "minds_pipeline_seconds_total" []
            "Run time of the pipeline.";
        PIPELINE_BUSY_SECONDS: Counter, "minds_pipeline_busy_seconds_total" ["work"]
            "Time in which at least one piece of this work was in progress."
            "The largest rate of `sampling`, `scoring`, `training`, `shadow` is the bottleneck: near 1, \
             that stage sets the pace. `any` is at least one of them.";
        PIPELINE_OVERLAP_SECONDS: Counter, "minds_pipeline_overlap_seconds_total" []
            "Time in which the trainer was busy during sampling or scoring."
            "Its share of the training time far below 1: raise `async_off_policy_steps`.";
        MAILBOX_DEPTH: Gauge, "minds_mailbox_depth" ["mailbox"]
            "Messages queued or being processed."
            "In `groups`, `rollouts`, `scored`, `batches`, `measures`. At capacity for long: the stage \
             behind the mailbox is the bottleneck.";
        MAILBOX_CAPACITY: Gauge, "minds_mailbox_capacity" ["mailbox"]
            "Capacity of the mailbox in messages.";
        MAILBOX_SENT: Counter, "minds_mailbox_sent_total" ["mailbox"]
            "Messages sent.";
        MAILBOX_LOST: Counter, "minds_mailbox_lost_total" ["mailbox"]
            "Messages dropped unopened. Anything but 0 before a run's end is a fault."
            "Anything but 0 before the end: a stage died, see the log.";
        MAILBOX_WAIT_SECONDS: Counter, "minds_mailbox_wait_seconds_total" ["mailbox"]
            "Time that senders waited for a permit, summed over senders."
            "Grows in `rollouts`: rewards are slow, raise `scorer.workers`.";
        STAGE_BUSY: Gauge, "minds_stage_busy" ["stage"]
            "Pieces of work in progress.";
        STAGE_DONE: Counter, "minds_stage_done_total" ["stage"]
            "Pieces of work done."
            "Rollouts of `sampler` and `scorer`, groups of `batcher`, steps of `trainer`.";
        STAGE_FAILED: Counter, "minds_stage_failed_total" ["stage"]
            "Pieces of work that failed."
            "Grows: the log names each cause.";
    }
    "Evaluations" {
        EVAL_STEP: Gauge, "minds_eval_step" []
            "Optimizer steps of the weights of the last evaluation."
            "Far behind `minds_run_step`: evaluations take longer than `trainer.eval_every` steps.";
        EVAL_REWARD: Gauge, "minds_eval_reward" ["environment"]
            "Mean reward of the last evaluation."
            "Of each environment with the weight 0. Falls while `minds_trainer_reward` grows: the run \
             learns what does not carry over.";
        EVAL_REWARD_LOW: Gauge, "minds_eval_reward_low" ["environment"]
            "Lower end of its 95% interval."
            "Absent for a single rollout.";
        EVAL_REWARD_HIGH: Gauge, "minds_eval_reward_high" ["environment"]
            "Upper end of its 95% interval."
            "Far from the lower end: raise `eval.episodes`.";
    }
    "Sampling" {
        SAMPLER_ROLLOUTS: Counter, "minds_sampler_rollouts_total" ["environment", "outcome"]
            "Finished rollouts: `sampled`, or `failed` after all retries."
            "`failed`: the service or the environment refuses, see the log.";
        SAMPLER_TOKENS: Counter, "minds_sampler_tokens_total" ["kind"]
            "Tokens of sampled rollouts: `prompt` of their last prompts, `sampled` of their completions.";
        SAMPLER_ROLLOUT_SECONDS: Histogram(&SECONDS), "minds_sampler_rollout_seconds" ["environment"]
            "Time from a group's dispatch to the end of each of its rollouts."
            "A long tail: stragglers hold groups; `staleness = \"drop\"`, or fewer `max_new_tokens`.";
    }
    "Scoring" {
        SCORER_SCORED: Counter, "minds_scorer_scored_total" ["environment"]
            "Rollouts with a reward.";
        SCORER_REWARD_ERRORS: Counter, "minds_scorer_reward_errors_total" ["environment", "cause"]
            "Rollouts without a reward, by the cause of the last attempt."
            "`service`: one that the reward needs failed; `away`: it did not answer within its limit; \
             `timed_out`, `environment`, `unsupported`, `refused`, `budget`, `not_finite`. Above a few percent: read \
             `quarantine.jsonl`; `budget`: raise `scorer.queries_per_step`.";
        SCORER_TOKENS_DISCARDED: Counter, "minds_scorer_tokens_discarded_total" []
            "Sampled tokens of rollouts without a reward.";
        SCORER_QUARANTINED: Counter, "minds_scorer_quarantined_total" []
            "Rollouts written to quarantine.jsonl: their reward failed after all retries, and not because of the run's own limits.";
        SCORER_REWARD: Histogram(&REWARDS), "minds_scorer_reward" ["environment"]
            "Rewards."
            "All in one bucket: nothing to learn.";
        SCORER_SCORE_SECONDS: Histogram(&SECONDS), "minds_scorer_score_seconds" ["environment"]
            "Time of a reward, including retries and waits.";
        SCORER_BACKLOG: Gauge, "minds_scorer_backlog" []
            "Rollouts sampled but not yet scored."
            "Grows: raise `scorer.workers` or make the reward cheaper.";
        SCORER_QUERIES: Counter, "minds_scorer_queries_total" ["answer"]
            "Logprob queries of rewards, answered by the `service` or from the `memory` of an equal query.";
        SCORER_QUERY_WAIT_SECONDS: Counter, "minds_scorer_query_wait_seconds_total" []
            "Time that logprob queries waited for a slot or for the next step, summed over queries."
            "Grows: raise `scorer.concurrency` or `scorer.queries_per_step`.";
        SHADOW_STEPS: Counter, "minds_shadow_steps_total" []
            "Gradient steps measured by shadow adapters.";
        SHADOW_WAIT_SECONDS: Counter, "minds_shadow_wait_seconds_total" []
            "Time that shadow gradient steps waited for an adapter."
            "Above `minds_shadow_service_seconds_total`: raise `shadow.adapters`.";
        SHADOW_SERVICE_SECONDS: Counter, "minds_shadow_service_seconds_total" []
            "Time that shadow gradient steps took.";
        PYTHON_PROCESS_ENDS: Counter, "minds_python_process_ends_total" ["environment"]
            "Processes of a Python environment that ended unexpectedly or did not start, and were replaced."
            "Grows: its code crashes or needs too much memory; the log has its last lines.";
    }
    "Workers" {
        WORKERS: Gauge, "minds_workers" ["environment"]
            "Workers that serve the environment now."
            "This section is present only with `scorer.transport = \"nats\"`. 0: its jobs wait. Start a \
             `minds-actors worker`; if one is running, its log says why it does not serve the environment.";
        JOBS_QUEUED: Gauge, "minds_jobs_queued" []
            "Jobs that no worker has started."
            "Grows: start more workers, or raise their `--concurrency`.";
        JOBS_RUNNING: Gauge, "minds_jobs_running" []
            "Jobs that a worker has started and not finished.";
        JOBS_DONE: Counter, "minds_jobs_done_total" []
            "Jobs whose result the run received.";
        JOBS_TAKEN_UP: Counter, "minds_jobs_taken_up_total" []
            "Jobs whose result arrived while the run was interrupted.";
        JOB_REDELIVERIES: Counter, "minds_job_redeliveries_total" []
            "Number of redeliveries of jobs."
            "Grows: workers end, hang or lose their connection for longer than `nats.ack_wait_s`.";
        JOB_RESULTS_DROPPED: Counter, "minds_job_results_dropped_total" ["why"]
            "Dropped results: `late`, `duplicate` or `foreign`."
            "`late`: the run had canceled the job; `duplicate`: the job was delivered twice and finished twice; \
             `foreign`: the run did not submit the job.";
        DEAD_LETTERS: Counter, "minds_dead_letters_total" []
            "Jobs that no worker finished."
            "Above 0: `minds-actors dead-letters list` shows the causes.";
        WORKER_JOBS: Counter, "minds_worker_jobs_total" ["worker"]
            "Jobs of this run that the worker has finished.";
        WORKER_JOB_SECONDS: Counter, "minds_worker_job_seconds_total" ["worker"]
            "Time that the worker spent on these jobs."
            "Divided by the metric above: mean time of a job. Much higher than for other workers: a slow machine.";
        WORKER_RUNNING: Gauge, "minds_worker_running" ["worker"]
            "Jobs of this run in progress.";
        WORKER_IDLE_RATIO: Gauge, "minds_worker_idle_ratio" ["worker"]
            "Share of the worker's capacity that was idle since it started."
            "Near 1 for all workers: the run needs fewer workers.";
        BROKER_CONNECTED: Gauge, "minds_broker_connected" []
            "Whether there is a connection to the broker, 0 or 1."
            "0: jobs and results wait, and none is lost.";
        BROKER_RECONNECTS: Counter, "minds_broker_reconnects_total" []
            "Connections to the broker after the first.";
    }
    "Training" {
        TRAINER_TOKENS: Counter, "minds_trainer_tokens_total" []
            "Sampled tokens that were trained.";
        TRAINER_STALENESS_STEPS: Histogram(&STEPS), "minds_trainer_staleness_steps" []
            "Steps between the weights that sampled a group and those that it trained."
            "At `max_staleness` all the time: the trainer waits for stragglers, or drops groups.";
        TRAINER_STALENESS_NEWEST_STEPS: Gauge, "minds_trainer_staleness_newest_steps" []
            "Steps between the newest weights that sampled a rollout and those that the last step trained, mean; only with \
             `weights = \"inflight\"`."
            "Near the mean of `minds_trainer_staleness_steps`: rollouts are short, and wait for their batch.";
        TRAINER_TRAIN_SECONDS: Histogram(&SECONDS), "minds_trainer_train_seconds" []
            "Time of a step's passes and its optimizer step, from submission to result.";
        TRAINER_EXPORT_SECONDS: Histogram(&SECONDS), "minds_trainer_export_seconds" []
            "Wait after a step until its weights can be sampled."
            "As long as a step: raise `publish_every`.";
        TRAINER_IDLE_SECONDS: Counter, "minds_trainer_idle_seconds_total" ["reason"]
            "Time in which the trainer was idle, by what it was waiting for."
            "The largest of `sampling`, `scoring`, `sampling_and_scoring`, `export` is what to speed up. \
             `nothing`: something is stuck, send SIGUSR1.";
        TRAINER_REFUSED_BATCHES: Counter, "minds_trainer_refused_batches_total" []
            "Batches that the service refused: no optimizer step was made of them."
            "Any: the log says why; three in a row end the run.";
        TRAINER_REWARD: Gauge, "minds_trainer_reward" ["environment"]
            "Mean reward of the last step's rollouts.";
        TRAINER_MIXED_GROUPS_RATIO: Gauge, "minds_trainer_mixed_groups_ratio" ["environment"]
            "Share of the last step's groups whose rewards differ: the others have no gradient."
            "Below a half: most of what is sampled has no learning signal.";
        TRAINER_KL_NATS: Gauge, "minds_trainer_kl_nats" ["estimator"]
            "Gap between the weights that sampled and those in training before the last step, per token: \
             `v1` is the mean of q - p, `v2` half the mean of its square (log-probs q when sampled, p \
             now), `one_version` the same over the rollouts that one version sampled, with in-flight weights."
            "`v2`, or `one_version` if there is one, above 0.01 with an unclipped loss: lower the learning rate or the \
             staleness.";
        TRAINER_ENTROPY_NATS: Gauge, "minds_trainer_entropy_nats" []
            "Mean of -logprob over the last step's tokens."
            "Falls to 0: the policy has collapsed.";
        TRAINER_LEARNING_RATE: Gauge, "minds_trainer_learning_rate" []
            "Learning rate of the last optimizer step.";
        TRAINER_CLIPPED_STEPS: Counter, "minds_trainer_clipped_steps_total" []
            "Optimizer steps whose gradient was clipped at the running limit."
            "Any: look at `optim/max_abs_logprob_gap` of that step.";
        TRAINER_MASKED_TOKENS: Counter, "minds_trainer_masked_tokens_total" []
            "Sampled tokens left out of the loss because their logprob is implausible."
            "Any: a fault of the service.";
        TRAINER_KL_ALARMS: Counter, "minds_trainer_kl_alarms_total" []
            "Steps whose gap was above `trainer.kl_alarm`."
            "Any: the policy moves too far between sampling and training.";
        TRAINER_UNCHANGED_STEPS: Counter, "minds_trainer_unchanged_steps_total" []
            "Steps that left the weights unchanged because all rewards were equal within their groups."
            "Grows: as `minds_trainer_mixed_groups_ratio`.";
    }
    "The service" {
        SERVICE_REQUEST_SECONDS: Histogram(&SECONDS), "minds_service_request_seconds" ["operation"]
            "Time from a request's submission, or from the first wait for its answer, to its end."
            "By method of the service: `sample`, `logprobs`, `forward_backward`, `optim_step`, \
             `export_sampler`, `save_state`, `load_state` and others.";
        SERVICE_FAILURES: Counter, "minds_service_failures_total" ["operation", "kind"]
            "Failed requests by kind: `unavailable` ones are retried."
            "Not tried again are `rejected`, `unsupported`, `timed_out` (the answer took longer than its \
             limit), `away` (no answer within `tinker.outage`), `lost`, and `denied` (the account lacks a key, credit or a \
             permission), which ends the run.";
        SERVICE_REQUESTS_IN_FLIGHT: Gauge, "minds_service_requests_in_flight" ["operation"]
            "Requests without an answer yet.";
        SERVICE_EMPTY_SAMPLES: Counter, "minds_service_empty_samples_total" []
            "Samples without tokens."
            "Their rollouts have no completion. Grows: the service or its template is broken.";
        CLIENT_REQUESTS: Counter, "minds_client_requests_total" ["operation", "status"]
            "Network requests by the status of their answer; `none` without an answer."
            "Of servers only, not of the embedded engine. 429: the server is full, the client slows down \
             by itself; 5xx, `none`: the server is in trouble; 402, 403: the account has no credit or no permission, and \
             the run ends.";
        CLIENT_REQUEST_SECONDS: Histogram(&POLL_SECONDS), "minds_client_request_seconds" ["operation"]
            "Time of one network request; for `retrieve_future`, how long the server held the poll.";
        CLIENT_RETRIES: Counter, "minds_client_retries_total" ["why"]
            "Requests that were repeated, by why: `busy` (429, or a pause that the server asked for), \
             `failed`, `conflict`, `unreadable`.";
    }
}
