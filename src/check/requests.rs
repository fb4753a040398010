//! Requests that a step of a run sends to the service.

use crate::config::RunPlan;
use crate::config::choice::WeightsChoice;
use crate::config::rewards::{OracleWeights, ShadowFrom};
use minds_core::service::SamplerWeights;
use minds_stages::pipeline::PipelineOptions;
use serde::Serialize;

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepRequest {
    /// Purpose of the requests, such as `samples`.
    pub what: &'static str,
    /// Number of requests at a time; `None` where it depends on the environments.
    pub count: Option<u64>,
    /// Number of steps between two such times.
    pub every: u64,
    /// Additional information about the requests.
    pub note: String,
}

/// Properties of a run's environments that affect the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnvironmentUsage {
    /// Some are self-driven and send any number of requests.
    pub self_driven: bool,
    /// Some rewards query logprobs, or may do so.
    pub queries: bool,
    /// Some rewards measure gradient steps.
    pub measure: bool,
    /// Environments that are evaluated only.
    pub evaluated: u64,
}

/// All requests of a step, the most frequent first.
#[must_use]
pub fn requests(plan: &RunPlan, usage: EnvironmentUsage) -> Vec<StepRequest> {
    let PipelineOptions { batch, train, evaluate, .. } = &plan.pipeline;
    let groups = batch.groups_per_batch.get() as u64;
    let members = u64::from(plan.group_size.get());
    let request =
        |what, count: u64, every: u64, note: String| StepRequest { what, count: Some(count), every, note };
    let mut all = Vec::new();
    if !plan.pipeline.is_supervised() {
        all.push(request(
            "samples",
            groups,
            1,
            match usage.self_driven {
                true => {
                    format!("{members} completions each; Python environments send any number of their own")
                }
                false => {
                    format!("{members} completions each; each later turn of a rollout is one more request")
                }
            },
        ));
    }
    if usage.queries {
        let concurrency = plan.queries.concurrency;
        all.push(StepRequest {
            what: "logprobs for rewards",
            count: None,
            every: 1,
            note: match plan.queries.per_step {
                Some(most) => format!("on demand, at most {most} per step, {concurrency} at a time"),
                None => format!("on demand, at most {concurrency} at a time"),
            },
        });
    }
    if batch.kl_penalty > 0.0 {
        let of = match &plan.teacher {
            Some(_) => "the teacher",
            None => plan.kl_reference.pinned().unwrap_or("the base model"),
        };
        all.push(request(
            "logprobs of the reference",
            groups * members,
            1,
            format!("one per rollout, of {of}"),
        ));
    }
    let what = if plan.pipeline.is_supervised() { "conversations" } else { "rollouts" };
    let parts = batch.minibatches.get() as u64;
    all.push(request("forward_backward", parts, 1, format!("{} {what} each", groups * members / parts)));
    all.push(request("optim_step", train.substeps.get() as u64, 1, String::new()));
    let publish = train.publish_every.get();
    if !plan.pipeline.is_supervised() || evaluate.is_some() {
        all.push(request(
            "sampler weights",
            1,
            publish,
            match train.weights {
                SamplerWeights::Snapshot => "the newest, to sample from".into(),
                SamplerWeights::InFlight => "the newest, which replace those of samples under way".into(),
            },
        ));
    }
    let answers_by_policy =
        matches!(plan.oracle, WeightsChoice::Named(OracleWeights::Sampled | OracleWeights::Latest));
    let rewards_query_policy = usage.self_driven || (usage.queries && answers_by_policy);
    let shadows_from_policy = usage.measure && plan.shadow_from == ShadowFrom::Policy;
    if plan.pipeline.keeps_versions(shadows_from_policy, rewards_query_policy) {
        let uses = [
            (rewards_query_policy, "rewards that query the policy"),
            (shadows_from_policy, "measured gradient steps"),
            (evaluate.is_some(), "evaluations"),
        ];
        let uses: Vec<&str> = uses.into_iter().filter(|(is_used, _)| *is_used).map(|(_, by)| by).collect();
        let note = format!("the same once more as a snapshot, for {}", uses.join(" and "));
        all.push(request("fixed sampler weights", 1, publish, note));
    }
    if usage.measure {
        all.push(StepRequest {
            what: "measured gradient steps",
            count: None,
            every: 1,
            note: format!(
                "on demand, {} at a time: each a load, a pass, a step and two exports",
                plan.shadow.adapters
            ),
        });
        if shadows_from_policy {
            all.push(request("states for measuring", 1, publish, "deleted when no longer used".into()));
        }
    }
    if train.save_every > 0 {
        all.push(request(
            "saved state",
            1,
            train.save_every,
            "with sampler weights under the same name".into(),
        ));
    }
    if let Some(evaluation) = evaluate.filter(|_| usage.evaluated > 0) {
        let samples = u64::from(evaluation.samples_per_item.get());
        let rollouts = evaluation.items.get() * samples * usage.evaluated;
        let note = format!("rollouts with one sample per turn, {} at a time", evaluation.concurrency);
        all.push(request("evaluation", rollouts, evaluation.every.get(), note));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::config::ProcessVariables;

    fn listed(text: &str, usage: EnvironmentUsage) -> Vec<(&'static str, Option<u64>, u64)> {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("x.toml");
        let small = "env.id = 'target_number'\nmodel.base_model = 'tiny-random'\n";
        std::fs::write(&config, format!("{small}{text}")).unwrap();
        let command = cli::RunArgs::for_config(config, vec![], None);
        let plan = RunPlan::load(&command, &ProcessVariables::default()).unwrap();
        requests(&plan, usage).into_iter().map(|r| (r.what, r.count, r.every)).collect()
    }

    #[test]
    fn the_requests_of_a_step_follow_from_its_sizes() {
        let text = "[trainer]\nrollouts_per_example = 8\ngroups_per_batch = 12\nnum_substeps = 2\nstream_minibatches = 3\n\
                    publish_every = 4\nkl_penalty_coef = 0.1\nsave_every = 10\neval_every = 5\n[eval]\nepisodes = 16";
        let usage = EnvironmentUsage { self_driven: false, queries: true, measure: true, evaluated: 2 };
        assert_eq!(
            listed(text, usage),
            [
                ("samples", Some(12), 1),
                ("logprobs for rewards", None, 1),
                // 12 groups of 8.
                ("logprobs of the reference", Some(96), 1),
                // Two steps of three parts each.
                ("forward_backward", Some(6), 1),
                ("optim_step", Some(2), 1),
                ("sampler weights", Some(1), 4),
                ("measured gradient steps", None, 1),
                ("states for measuring", Some(1), 4),
                ("saved state", Some(1), 10),
                // 16 episodes of two environments.
                ("evaluation", Some(32), 5),
            ]
        );
    }

    #[test]
    fn disabled_features_send_no_requests() {
        let found = listed("trainer.save_every = 0", EnvironmentUsage::default());
        let what: Vec<_> = found.iter().map(|(what, ..)| *what).collect();
        assert_eq!(what, ["samples", "forward_backward", "optim_step", "sampler weights"]);
    }

    #[test]
    fn in_flight_weights_are_exported_once_more_where_something_needs_them_as_they_were() {
        let queries = EnvironmentUsage { queries: true, ..EnvironmentUsage::default() };
        let measures = EnvironmentUsage { measure: true, ..EnvironmentUsage::default() };
        let python = EnvironmentUsage { self_driven: true, queries: true, ..EnvironmentUsage::default() };
        let base = "[scorer]\npolicy = \"base\"";
        for (usage, text, is_listed) in [
            (EnvironmentUsage::default(), "", false),
            (queries, "", true),
            (queries, base, false),
            (python, base, true),
            (measures, "", true),
            (measures, "[shadow]\nfrom = \"base\"", false),
            (EnvironmentUsage::default(), "eval_every = 5", true),
        ] {
            for (weights, is_listed) in [("inflight", is_listed), ("snapshot", false)] {
                let found = listed(&format!("[trainer]\nweights = \"{weights}\"\n{text}"), usage);
                let fixed = found.iter().any(|(what, ..)| *what == "fixed sampler weights");
                assert_eq!(fixed, is_listed, "{weights} {text} {usage:?}");
            }
        }
    }
}
