use super::*;
use crate::config::service::HOSTED_URL;
use crate::config::stages::stages;
use minds_environments::native;
use minds_environments::worker::PythonOptions;
use minds_tinker::client::Secret;
use std::num::NonZeroU64;

/// The plan of a config's text, with overrides, in an environment with these variables.
pub(in crate::config) fn plan(
    text: &str,
    set: &[&str],
    vars: &[(&str, &str)],
) -> Result<RunPlan, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("train_x.toml");
    std::fs::write(&config, text).unwrap();
    let set = set.iter().map(|s| (*s).to_owned()).collect();
    let command = cli::RunArgs::for_config(config, set, None);
    RunPlan::load(&command, &vars.iter().copied().collect())
}

/// The plan of each stage of a config, or of its only run.
fn shipped_plans(config: &Path) -> Vec<RunPlan> {
    let names: Vec<_> = stages(config).unwrap().into_iter().map(|stage| Some(stage.name)).collect();
    let stages = if names.is_empty() { vec![None] } else { names };
    let plan = |stage| {
        let command = cli::RunArgs::for_config(config.to_owned(), vec![], None).at_stage(stage);
        RunPlan::load(&command, &ProcessVariables::default())
            .unwrap_or_else(|error| panic!("{}: {error}", config.display()))
    };
    stages.into_iter().map(plan).collect()
}

pub(in crate::config) const SMALL: &str =
    "[env]\nid = \"./environments/x\"\n[model]\nbase_model = \"tiny-random\"\n";

#[test]
fn the_config_that_the_readme_shows_is_one() {
    let readme = include_str!("../../../README.md");
    let (_, shown) = readme.split_once("```toml\n").unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    let plan = plan(shown, &[], &[]).unwrap();
    assert_eq!(
        (plan.pipeline.train.max_steps, plan.group_size.get(), plan.pipeline.train.save_every),
        (60, 8, 20)
    );
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
}

#[test]
fn every_key_of_the_original_harness_and_its_aliases_are_read() {
    let text = r#"
        [[envs]]
        id = "./environments/ghost_trace"
        ratio = 0.3
        [envs.args]
        num_examples = 2000
        [[envs]]
        id = "environments/gradient_prophet"
        name = "prophet"
        weight = 0.2
        [trainer]
        rollouts_per_example = 16
        batch_size = 64
        num_batches = 50000
        seed = 5
        async_off_policy_steps = 1
        stream_minibatches = 8
        learning_rate = 3.162e-6
        loss_fn = "ppo"
        loss_fn_config = { clip_high_threshold = 1.3 }
        training_rank = 8
        save_every = 10
        eval_every = 200
        [trainer.args]
        max_new_tokens = 8192
        [model]
        base_model = "Qwen/Qwen3-30B-A3B"
        renderer = "qwen3_disable_thinking"
        [tinker]
        base_url = "embedded"
        api_key_env = "MY_KEY"
    "#;
    let plan = plan(text, &[], &[]).unwrap();
    assert_eq!(
        plan.envs.iter().map(|e| (&*e.name, e.weight)).collect::<Vec<_>>(),
        [("ghost_trace", 0.3), ("prophet", 0.2)]
    );
    assert_eq!(
        (plan.group_size.get(), plan.pipeline.batch.groups_per_batch.get(), plan.pipeline.train.max_steps),
        (16, 64, 50_000)
    );
    assert_eq!(
        (plan.pipeline.seed, plan.pipeline.max_steps_off_policy, plan.pipeline.train.save_every),
        (5, 1, 10)
    );
    assert_eq!(plan.pipeline.train.loss, Loss::Ppo { low: 0.8, high: 1.3 });
    assert_eq!(
        (plan.lora.rank, plan.pipeline.train.adam.learning_rate, plan.sampling.max_tokens),
        (8, 3.162e-6, 8192)
    );
    assert_eq!(plan.renderer.as_deref(), Some("qwen3_disable_thinking"));
    assert!(matches!(plan.service, ServicePlan::Embedded(_)));
    assert_eq!(plan.warnings.len(), 3, "nothing to evaluate, and no packages: {:?}", plan.warnings);
}

#[test]
fn variables_of_the_chat_template_are_handed_on_with_their_types() {
    let args = "[model.template_args]\nenable_thinking = false\nreasoning_effort = \"high\"\nn = [1, 2.5]\n";
    let plan = plan(&format!("{SMALL}{args}"), &[], &[]).unwrap();
    let expected = serde_json::json!({"enable_thinking": false, "reasoning_effort": "high", "n": [1, 2.5]});
    assert_eq!(serde_json::Value::from(plan.template_args), expected);
    assert!(plan.resolved.model.unwrap().template_args.contains_key("n"), "the run folder keeps them");
}

#[test]
fn logprob_queries_use_the_weights_that_the_config_names() {
    let oracle = |policy: &str| plan(&format!("{SMALL}[scorer]\npolicy = \"{policy}\""), &[], &[]);
    assert_eq!(plan(SMALL, &[], &[]).unwrap().oracle, WeightsChoice::Named(OracleWeights::Sampled));
    assert_eq!(oracle("latest").unwrap().oracle, WeightsChoice::Named(OracleWeights::Latest));
    let pinned = oracle("pinned:tinker://run/sampler_weights/000010").unwrap().oracle;
    assert_eq!(pinned, WeightsChoice::Pinned("tinker://run/sampler_weights/000010".into()));
    for wrong in ["pinned:", "newest"] {
        let error = oracle(wrong).unwrap_err().to_string();
        assert!(
            error.contains("scorer.policy") && error.contains("sampled, latest, base, pinned:"),
            "{error}"
        );
    }
}

// H3: `max_new_tokens` never reached the environments, which fell to a hidden 128 tokens.
// H20: the shipped step sizes were up to 150 times too small for anything to move.
#[test]
fn h3_h20_the_written_length_counts_and_step_sizes_can_move_something() {
    let written = plan(&format!("{SMALL}[trainer.args]\nmax_new_tokens = 8192"), &[], &[]).unwrap();
    assert_eq!(written.sampling.max_tokens, 8192);
    let default = plan(SMALL, &[], &[]).unwrap();
    assert!(
        default.warnings.iter().any(|w| w.contains("max_new_tokens is not set")),
        "{:?}",
        default.warnings
    );
    assert_eq!(default.pipeline.train.adam.learning_rate, 1e-4);
    let configs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let files = std::fs::read_dir(configs).unwrap().map(|entry| entry.unwrap().path());
    for config in files.filter(|path| path.extension().is_some_and(|end| end == "toml")) {
        for shipped in shipped_plans(&config) {
            assert!(shipped.pipeline.train.adam.learning_rate >= 1e-4, "{}", config.display());
            let names_length = shipped.sampling.max_tokens < 2048 || shipped.pipeline.is_supervised();
            assert!(names_length, "{} names its length", config.display());
        }
    }
}

#[test]
fn notes_list_the_defaults_that_differ_for_a_config_of_the_original_harness() {
    let original = |id: &str, trainer: &str, model: &str| {
        let text = format!(
            "[env]\nid = \"{id}\"\n[trainer]\n{trainer}\nargs = {{ max_new_tokens = 512 }}\n\
             [model]\nbase_model = \"Qwen/Qwen3-8B\"\n{model}\n[tinker]\napi_key_env = \"TINKER_API_KEY\"\n"
        );
        plan(&text, &[], &[]).unwrap().warnings
    };
    let package = "./environments/ghost_trace";
    let found = original(package, "", "");
    // The package is not here: the native environment of its name is, which is said as well.
    let native = "there is no ./environments/ghost_trace in ";
    assert_eq!(found.len(), 4, "{found:?}");
    for part in ["it is 0.0001 here and was 3.162e-6", "was role_colon", "it is 1 here and was 4", native] {
        assert!(found.iter().any(|warning| warning.contains(part)), "{part}: {found:?}");
    }
    let trainer = "learning_rate = 1e-5\nstream_minibatches = 1";
    let found = original(package, trainer, "renderer_name = \"qwen3\"");
    assert!(found.len() == 1 && found[0].contains(native), "{found:?}");
    assert_eq!(original("ghost_trace", "", ""), [""; 0], "it is no file of the original");
}

#[test]
fn answers_as_long_as_all_that_the_model_reads_are_shortened_with_a_note() {
    let mut plan = plan(&format!("{SMALL}[trainer.args]\nmax_new_tokens = 8192"), &[], &[]).unwrap();
    plan.fit_answers(16_384);
    assert_eq!((plan.sampling.max_tokens, plan.warnings.len()), (8192, 0));
    plan.fit_answers(2048);
    assert_eq!(plan.sampling.max_tokens, 1024);
    assert!(plan.warnings[0].contains("8192") && plan.warnings[0].contains("2048"), "{:?}", plan.warnings);
}

#[test]
fn the_questions_of_rewards_are_bounded() {
    let limits = |text: &str| plan(&format!("{SMALL}[scorer]\n{text}"), &[], &[]).map(|plan| plan.queries);
    let default = limits("").unwrap();
    assert_eq!((default.concurrency.get(), default.per_step), (128, None));
    let set = limits("concurrency = 4\nqueries_per_step = 100\ntimeout_s = 60").unwrap();
    assert_eq!(
        (set.concurrency.get(), set.per_step, set.wait_limit.as_secs()),
        (4, NonZeroU64::new(100), 30)
    );
    assert_eq!(limits("queries_per_step = 0").unwrap().per_step, None, "0 is no budget");
    for (text, words) in [("concurrency = 0", "at least 1"), ("concurrency = 5000", "at most 4096")] {
        let error = limits(text).unwrap_err().to_string();
        assert!(error.contains("scorer.concurrency") && error.contains(words), "{error}");
    }
}

#[test]
fn shadows_of_the_policy_have_its_shape_and_those_of_the_base_model_their_own() {
    let shadow = |text: &str| {
        let text = format!("{SMALL}[trainer]\ntraining_rank = 16\nlora_alpha = 8\n[shadow]\n{text}");
        plan(&text, &[], &[]).map(|plan| (plan.shadow_from, plan.shadow.lora.rank, plan.shadow.lora.alpha))
    };
    assert_eq!(shadow("").unwrap(), (ShadowFrom::Policy, 16, 8.0));
    assert_eq!(shadow("rank = 16").unwrap(), (ShadowFrom::Policy, 16, 8.0));
    assert_eq!(shadow("from = 'base'").unwrap(), (ShadowFrom::Base, 8, 32.0));
    assert_eq!(shadow("from = 'base'\nrank = 4").unwrap(), (ShadowFrom::Base, 4, 32.0));
    for (text, words) in [
        ("rank = 8", &["shadow.rank", "16", "trainer.training_rank"][..]),
        ("from = 'latest'", &["shadow.from", "policy, base"]),
        ("adapters = 100", &["shadow.adapters", "at most 64"]),
    ] {
        let error = shadow(text).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn the_service_is_that_of_set_then_the_variables_then_the_file_then_the_hosted_one() {
    let url =
        |text: &str, sets: &[&str], vars: &[(&str, &str)]| match plan(&format!("{SMALL}{text}"), sets, vars)
            .unwrap()
            .service
        {
            ServicePlan::Remote(remote) => remote.base_url,
            ServicePlan::Embedded(_) => "embedded".into(),
        };
    let file = "[tinker]\nbase_url = \"embedded\"";
    let vars = [("TINKER_BASE_URL", "http://localhost:9")];
    assert_eq!(url(file, &["tinker.base_url=http://localhost:8"], &vars), "http://localhost:8");
    assert_eq!(url(file, &[], &vars), "http://localhost:9");
    assert_eq!(url(file, &[], &[("TINKER_BASE_URL", "")]), "embedded");
    assert_eq!(url("", &[], &vars), "http://localhost:9");
    assert_eq!(url("", &[], &[]), HOSTED_URL);
    let error = plan(SMALL, &[], &[("TINKER_BASE_URL", "localhost:9")]).unwrap_err().to_string();
    assert!(error.contains("the variable TINKER_BASE_URL") && error.contains("https://"), "{error}");
}

// H15: `api_key_env` was not passed on.
#[test]
fn h15_the_key_is_that_of_the_named_variable_then_the_written_one() {
    let remote =
        |text: &str, vars: &[(&str, &str)]| match plan(&format!("{SMALL}{text}"), &[], vars).unwrap().service
        {
            ServicePlan::Remote(remote) => (remote.api_key, remote.missing_key),
            ServicePlan::Embedded(_) => panic!("it is remote"),
        };
    let key = |key: &str| Some(Secret::new(key));
    let vars = [("TINKER_API_KEY", "tml-usual"), ("MINE", "tml-mine")];
    assert_eq!(remote("", &vars), (key("tml-usual"), None));
    assert_eq!(remote("[tinker]\napi_key_env='MINE'", &vars), (key("tml-mine"), None));
    // A variable beats the file, as every variable does.
    assert_eq!(remote("[tinker]\napi_key='tml-written'", &vars), (key("tml-usual"), None));
    assert_eq!(remote("[tinker]\napi_key='tml-written'\napi_key_env='MINE'", &vars), (key("tml-mine"), None));
    assert_eq!(
        remote("[tinker]\napi_key='tml-written'\napi_key_env='UNSET'", &vars),
        (key("tml-written"), None)
    );
    assert_eq!(remote("[tinker]\napi_key='tml-written'", &[]), (key("tml-written"), None));
    let set = plan(SMALL, &["tinker.api_key=tml-set"], &vars).unwrap().service;
    assert!(matches!(set, ServicePlan::Remote(remote) if remote.api_key == key("tml-set")));
    // The hosted service needs a key, and a named variable must be set; other servers need none.
    assert_eq!(remote("", &[]), (None, Some("TINKER_API_KEY".into())));
    let local = "[tinker]\nbase_url='http://localhost:9'";
    assert_eq!(remote(local, &[]), (None, None));
    assert_eq!(remote(&format!("{local}\napi_key_env='MINE'"), &[]), (None, Some("MINE".into())));
}

#[test]
fn an_override_wins_and_its_complaint_names_it() {
    let changed = plan(SMALL, &["trainer.seed=9", "model.base_model=./other"], &[]).unwrap();
    assert_eq!((changed.pipeline.seed, &*changed.base_model), (9, "./other"));
    let error = plan(SMALL, &["trainer.sede=9"], &[]).unwrap_err().to_string();
    assert!(error.contains("--set trainer.sede=9") && error.contains("did you mean `seed`?"), "{error}");
}

#[test]
fn every_complaint_names_the_file_the_key_and_what_would_be_right() {
    for (text, expected) in [
        (
            "[model]\nbase_model = 3\n[env]\nid='x'",
            &["train_x.toml:2:14: `model.base_model` is 3; it must be a text in quotes"][..],
        ),
        (
            "[model]\nbase_model='x'\n[trainer]\nlerning_rate=1",
            &["train_x.toml:4:1: ", "lerning_rate", "did you mean `learning_rate`?"],
        ),
        ("[model]\nbase_model='x'", &["train_x.toml", "`env.id` is missing"]),
        ("[env]\nid='x'", &["`model.base_model` is missing"]),
        ("[model\n", &["train_x.toml:1:"]),
    ] {
        let error = plan(text, &[], &[]).unwrap_err().to_string();
        assert!(expected.iter().all(|part| error.contains(part)), "{text}\n{error}");
    }
    for (set, expected) in [
        ("trainer.groups_per_batch=0", "`trainer.groups_per_batch` is 0; it must be at least 1"),
        ("trainer.rollouts_per_example=-1", "is -1; it must be a non-negative whole number"),
        (
            "trainer.loss_fn=pop",
            "is \"pop\"; it must be one of: cispo, ppo, importance_sampling, truncated_importance_sampling, \
             masked_importance_sampling, gspo, dro, stable_reinforce; did you mean \"ppo\"?",
        ),
        ("trainer.learning_rate=-0.1", "`trainer.learning_rate` is -0.1; it must be finite and not negative"),
        ("trainer.learning_rate=nan", "`trainer.learning_rate` is NaN"),
        ("trainer.learning_rate=1e308", "`trainer.learning_rate` is 1e308; it must be at most 1"),
        ("shadow.learning_rate=1e308", "`shadow.learning_rate` is 1e308; it must be at most 1"),
        ("trainer.lora_alpha=1e308", "`trainer.lora_alpha` is 1e308; it must be at most 65536"),
        ("trainer.training_rank=0", "the rank must lie in 1..=512"),
        ("trainer.advantage=median", "it must be one of: group_mean, group_std"),
        ("trainer.args.temperature=-1", "`trainer.args.temperature` is -1; it must not be negative"),
        ("tinker.base_url=localhost:80", "it must be \"embedded\" or start with https://"),
        ("scorer.workers=0", "`scorer.workers` is 0"),
        ("scorer.timeout_s=0", "`scorer.timeout_s` is 0"),
        ("trainer.groups_per_batch=100000", "300000 groups would be in flight"),
        ("trainer.rollouts_per_example=10000", "it must be at most 4096"),
        ("tinker.base_url=https://me:sesame@host", "contains a user name or a password"),
        ("tinker.base_url='http:///me:sesame@host'", "contains a user name or a password"),
        ("tinker.base_url='http:\\\\/me:sesame@host'", "it must be \"embedded\" or start with https://"),
        ("tinker.base_url='https://host/?key=sesame'", "contains a `?`"),
        ("tinker.base_url='https://me:sesame@a host'", "the server's address cannot be read"),
        ("envs=[{id = \"target_number\"}]", "`env` cannot be combined with [[envs]]"),
    ] {
        let error = plan(SMALL, &[set], &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{set}\n{error}");
        assert!(!error.contains("sesame"), "{error}");
    }
}

#[test]
fn two_environments_of_one_name_are_refused() {
    let text = "[[envs]]\nid='a/x'\n[[envs]]\nid='b/x'\n[model]\nbase_model='m'";
    assert!(plan(text, &[], &[]).unwrap_err().to_string().contains("`envs[1].name` is \"x\" a second time"));
}

#[test]
fn a_key_is_neither_shown_nor_kept() {
    for url in ["embedded", "http://localhost:9"] {
        let text = format!("{SMALL}[tinker]\nbase_url='{url}'\napi_key='sesame'");
        let plan = plan(&text, &[], &[]).unwrap();
        assert!(!format!("{plan:?}").contains("sesame"));
        assert!(!toml::to_string(&plan.resolved).unwrap().contains("sesame"));
    }
}

#[test]
fn every_shipped_config_makes_a_plan_and_its_environments_load() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let mut seen = 0;
    for folder in [root.clone(), root.join("hosted")] {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let config = entry.path();
            if config.extension().is_none_or(|e| e != "toml") {
                continue;
            }
            for plan in shipped_plans(&config) {
                assert_eq!(plan.warnings, [""; 0], "{}", config.display());
                let environments = plan.envs.iter().filter(|env| env.demonstrations.is_none());
                for PythonOptions { id, args, seed, .. } in environments.map(|env| &env.options) {
                    if native::is_native(id) {
                        native::load(id, args, *seed).unwrap_or_else(|e| panic!("{}: {e}", config.display()));
                    } else {
                        assert!(Path::new(id).is_dir(), "{}: there is no {id}", config.display());
                    }
                }
            }
            seen += 1;
        }
    }
    assert!(seen >= 5);
}

#[test]
fn numbers_are_kept_for_tensorboard_unless_that_is_turned_off() {
    assert!(plan(SMALL, &[], &[]).unwrap().tensorboard);
    assert!(!plan(SMALL, &["log.tensorboard=false"], &[]).unwrap().tensorboard);
    let error = plan(SMALL, &["log.tensorbord=false"], &[]).unwrap_err().to_string();
    assert!(error.contains("did you mean `tensorboard`?"), "{error}");
}

#[test]
fn a_deadline_is_a_stretch_of_time() {
    let deadline =
        |text: &str| plan(SMALL, &[&format!("run.deadline={text}")], &[]).map(|plan| plan.deadline);
    assert_eq!(deadline("90m").unwrap(), Some(Duration::from_secs(5400)));
    assert_eq!(deadline("1h 30m").unwrap(), Some(Duration::from_secs(5400)));
    for wrong in ["soon", "0s", "-1h"] {
        let error = deadline(wrong).unwrap_err().to_string();
        assert!(error.contains("run.deadline") && error.contains("90m"), "{error}");
    }
}

#[test]
fn a_variable_beats_the_file_and_an_override_beats_both() {
    let text = format!("{SMALL}[trainer]\nseed = 1");
    let seed = |set: &[&str], vars: &[(&str, &str)]| plan(&text, set, vars).map(|plan| plan.pipeline.seed);
    let variable = [("MINDS_TRAINER__SEED", "2")];
    assert_eq!(seed(&[], &[]).unwrap(), 1);
    assert_eq!(seed(&[], &variable).unwrap(), 2);
    assert_eq!(seed(&["trainer.seed=3"], &variable).unwrap(), 3);
    let error = seed(&[], &[("MINDS_TRAINER__SEDE", "2")]).unwrap_err().to_string();
    assert!(error.starts_with("the variable MINDS_TRAINER__SEDE: ") && error.contains("`seed`?"), "{error}");
}

#[test]
fn a_variable_that_sets_nothing_is_named_unless_the_program_or_the_config_reads_it() {
    let door = "0123456789abcdef";
    let vars = [
        ("MINDS_SEED", "1"),
        ("MINDS_EMPTY", ""),
        ("MINDS_LOG", "debug"),
        ("MINDS_DOOR", door),
        ("MINDS_KEY", "key"),
        ("MINDS_GRADER", "key"),
    ];
    let text = format!(
        "{SMALL}[metrics]\ntoken_env = 'MINDS_DOOR'\n[tinker]\napi_key_env = 'MINDS_KEY'\n[trainer.args]\nmax_new_tokens = 8\n"
    );
    let text = text.replace("[model]", "pass_env = ['MINDS_GRADER']\n[model]");
    let warnings = plan(&text, &[], &vars).unwrap().warnings;
    let about_variables: Vec<&String> = warnings.iter().filter(|w| w.contains("MINDS_")).collect();
    assert_eq!(about_variables.len(), 1, "{warnings:?}");
    assert!(about_variables[0].contains("the variable MINDS_SEED sets nothing"), "{warnings:?}");
}

#[test]
fn a_complaint_of_any_module_names_the_line() {
    for (text, place) in [
        ("trainer.groups_per_batch = 0", "5:28"),
        ("trainer.num_batches = 0", "5:23"),
        ("trainer.args = { top_p = 0.0 }", "5:26"),
        ("scorer.workers = 0", "5:18"),
        ("shadow.adapters = 0", "5:19"),
        ("tinker = { base_url = 'embedded' }\nengine.threads = 1000", "6:18"),
        ("simulate.steps = 0", "5:18"),
        ("run.deadline = 'soon'", "5:16"),
        ("model.renderer = 'chat'", "5:18"),
        // What is wrong is the default, beside what is written in the same table.
        ("trainer.stream_minibatches = 8", "5:1"),
    ] {
        let text = format!("env.id = 'x'\nmodel.base_model = 'tiny-random'\n\n\n{text}");
        let error = plan(&text, &[], &[]).unwrap_err().to_string();
        assert!(error.contains(&format!("train_x.toml:{place}: `")), "{text}\n{error}");
    }
}

#[test]
fn a_config_without_any_key_is_the_same_after_a_journey_as_json() {
    // As an offer to a worker travels: missing keys are null there.
    let json = serde_json::to_value(ConfigFile::default()).unwrap();
    let read: ConfigFile = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), json);
}
