use super::*;
use serde_json::json;

fn read(row: serde_json::Value) -> StepRecord {
    serde_json::from_value(row).unwrap()
}

#[test]
fn a_row_is_flat_and_comes_back_as_it_was() {
    let environment = EnvironmentRecord {
        reward: Some(0.25),
        rollouts: Some(8.0),
        parts: [("error".to_owned(), 1.0), ("reward/total".to_owned(), 7.0)].into(),
        ..EnvironmentRecord::default()
    };
    let record = StepRecord {
        step: 3,
        entropy: Some(0.5),
        stepped: Some(1.0),
        environments: [("user/task".to_owned(), environment.clone()), ("user".to_owned(), environment)]
            .into(),
        service: [("optim/skew".to_owned(), 2.0)].into(),
        ..StepRecord::default()
    };
    let row = serde_json::to_value(&record).unwrap();
    let expected = json!({
        "env/user/error": 1.0, "env/user/metric/reward/total": 7.0, "env/user/reward/total": 0.25,
        "env/user/total_episodes": 8.0, "env/user/task/error": 1.0, "env/user/task/metric/reward/total": 7.0,
        "env/user/task/reward/total": 0.25, "env/user/task/total_episodes": 8.0, "optim/entropy": 0.5,
        "optim/skew": 2.0, "optim/stepped": 1.0, "step": 3.0,
    });
    assert_eq!(row, expected);
    assert_eq!(read(row), record);
}

#[test]
fn a_row_of_another_version_loses_no_number() {
    let row = json!({"step": 2, "optim/entropy": null, "older/number": 1.5, "env/gone/note": 2.0});
    let record = read(row);
    assert_eq!((record.step, record.entropy), (2, None));
    let kept = Metrics::from([("older/number".to_owned(), 1.5), ("env/gone/note".to_owned(), 2.0)]);
    assert_eq!(record.numbers(), kept);
    for row in [json!({"optim/entropy": 1}), json!({"step": null}), json!({"step": -1}), json!({"step": "1"})]
    {
        assert!(serde_json::from_value::<StepRecord>(row.clone()).is_err(), "{row}");
    }
}

#[test]
fn numbers_that_are_not_finite_are_removed_and_returned() {
    let environment = EnvironmentRecord { reward: Some(f64::NAN), rollouts: Some(0.0), ..Default::default() };
    let mut record = StepRecord {
        step: 1,
        loss_sum: Some(f64::INFINITY),
        entropy: Some(0.5),
        environments: [("a".to_owned(), environment)].into(),
        ..StepRecord::default()
    };
    let removed = record.remove_non_finite();
    assert_eq!(removed.into_keys().collect::<Vec<_>>(), ["env/a/reward/total", "loss:sum"]);
    assert_eq!((record.loss_sum, record.entropy, record.step), (None, Some(0.5), 1));
    assert_eq!(record.numbers()["env/a/total_episodes"], 0.0);
}

#[test]
fn a_number_of_the_service_replaces_none_of_the_record() {
    let mut record = StepRecord { entropy: Some(0.5), ..StepRecord::default() };
    for (key, value) in [("optim/entropy", 9.0), ("loss:sum", 3.0), ("skew:mean", 4.0)] {
        record.add_of_service(key, value);
    }
    assert_eq!((record.entropy, record.loss_sum, record.service["skew:mean"]), (Some(0.5), Some(3.0), 4.0));
}

#[test]
fn a_part_named_like_a_run_metric_does_not_replace_it() {
    let parts = Metrics::from([("reward".into(), 7.0), ("error".into(), 1.0)]);
    let measured =
        EvaluatedEnvironment { reward: Some(0.25), rollouts: Some(4.0), parts, ..Default::default() };
    let record = EvaluationRecord { step: 10, environments: [("a".to_owned(), measured)].into() };
    let row = r#"{"step":10,"eval/a/episodes":4.0,"eval/a/error":1.0,"eval/a/metric/reward":7.0,"eval/a/reward":0.25}"#;
    assert_eq!(serde_json::to_string(&record).unwrap(), row);
    assert_eq!(serde_json::from_str::<EvaluationRecord>(row).unwrap(), record);
}

#[test]
fn a_rollout_row_is_read_as_it_was_written() {
    let row = r#"{"step":1,"environment":"e","group":2,"item":3,"member":4,"policy":0,"reward":0.1,"advantage":null,"metrics":{"x":null,"y":2.0},"prompt":[{"role":"user","content":"?"}],"turns":[{"text":"a","complete":true,"prompt_tokens":3,"tokens":[5],"logprobs":[-0.5]}]}"#;
    let read: RolloutRow<'_> = serde_json::from_str(row).unwrap();
    assert_eq!((read.reward, read.metrics["y"], read.metrics["x"].is_nan()), (0.1, 2.0, true));
    assert_eq!(serde_json::to_string(&read).unwrap(), row);
}

#[test]
fn a_rollout_of_several_versions_names_them() {
    let row = r#"{"step":9,"environment":"e","group":2,"item":3,"member":4,"policy":6,"newest_policy":7,"reward":0.5,"advantage":0.5,"metrics":{},"prompt":[],"turns":[{"text":"ab","complete":true,"prompt_tokens":3,"tokens":[5,6],"logprobs":[-0.5,-0.25],"versions":[{"version":6,"tokens":1},{"version":7,"tokens":1}]}]}"#;
    let read: RolloutRow<'_> = serde_json::from_str(row).unwrap();
    assert_eq!((read.newest_policy, read.turns[0].versions.len()), (Some(7), 2));
    assert_eq!(serde_json::to_string(&read).unwrap(), row);
}
