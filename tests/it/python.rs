//! Environments that are Python packages, from the config to the trained step.

use crate::command::{metrics, output, run, steps};
use crate::rendered::{models, smollm2};
use crate::venv;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn actors(args: &[&str]) -> (Option<i32>, String, String) {
    output(Command::new(env!("CARGO_BIN_EXE_minds-actors")).args(args).current_dir(root("")))
}

#[test]
fn the_classic_example_trains_from_its_config() {
    let dir = tempfile::tempdir().unwrap();
    let config = root("configs/python_classic.toml");
    let mut command = run(&config, dir.path(), &["--max-steps", "2"]);
    let (code, out, err) = output(command.current_dir(root("")));
    assert_eq!(code, Some(0), "{out}\n{err}");
    assert_eq!(steps(dir.path()), [1, 2]);
    for row in metrics(dir.path()) {
        let found = |end: &str| row.iter().find(|(key, _)| key.ends_with(end)).map(|(_, value)| *value);
        assert_eq!(found("reward_coerced"), Some(0.0), "{row:?}");
        assert!(found("letters").is_some_and(|letters| (0.0..=1.0).contains(&letters)), "{row:?}");
    }
    let prompts = prompts(dir.path());
    assert_eq!(prompts.len(), 2 * 4);
    let shown = |prompt: &Value| {
        prompt[0]["content"].as_str().unwrap().starts_with("Spell backwards, letters only: ")
    };
    assert!(prompts.iter().all(shown), "{prompts:?}");
    assert_ne!(prompts[0], prompts[4], "each group has a task of its own");
}

/// The first conversation of every rollout of the first step.
fn prompts(folder: &Path) -> Vec<Value> {
    let rollouts = std::fs::read_to_string(folder.join("rollouts/step_000001.jsonl")).unwrap();
    let rollouts = rollouts.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rollouts.map(|mut rollout| rollout["prompt"].take()).collect()
}

/// The first block of this language in the guide, without its indentation.
fn in_the_guide(language: &str) -> String {
    let guide = std::fs::read_to_string(root("docs/python-environments.md")).unwrap();
    let (_, rest) = guide.split_once(&format!("```{language}\n")).unwrap();
    let (block, _) = rest.split_once("```").unwrap();
    block.lines().map(|line| format!("{}\n", line.strip_prefix("   ").unwrap_or(line))).collect()
}

#[test]
fn the_guide_leads_to_a_trained_step() {
    let dir = tempfile::tempdir().unwrap();
    let package = dir.path().join("my_task");
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("__init__.py"), in_the_guide("python")).unwrap();
    let config = dir.path().join("train.toml");
    std::fs::write(&config, in_the_guide("toml")).unwrap();
    let id = format!("env.id={}", package.display());
    let sets = ["--max-steps", "1", "--set", "model.base_model=tiny-random", "--set", &id];
    let (code, out, err) = output(&mut run(&config, &dir.path().join("run"), &sets));
    assert_eq!(code, Some(0), "{out}\n{err}");
    assert_eq!(steps(&dir.path().join("run")), [1]);
}

#[test]
fn online_the_verifiers_example_trains_from_its_config() {
    let dir = tempfile::tempdir().unwrap();
    let config = root("configs/python_verifiers.toml");
    let python = format!("env.python={}", venv::verifiers().display());
    let mut command = run(&config, dir.path(), &["--max-steps", "2", "--set", &python]);
    let (code, out, err) = output(command.current_dir(root("")));
    assert_eq!(code, Some(0), "{out}\n{err}");
    for row in metrics(dir.path()) {
        let found = |end: &str| row.iter().find(|(key, _)| key.ends_with(end)).map(|(_, value)| *value);
        assert_eq!(found("reward_errors"), Some(0.0), "{row:?}");
        assert!(found("digits").is_some_and(|digits| (0.0..=1.0).contains(&digits)), "{row:?}");
    }
    assert!(
        prompts(dir.path()).iter().all(|prompt| prompt[0]["role"] == "user"),
        "{:?}",
        prompts(dir.path())
    );
}

/// Published packages on each release of the library, from a config to the second step.
#[test]
#[ignore = "minutes: `just python-packages`"]
fn published_packages_train_two_steps_on_every_release() {
    let old = venv::python("verifiers-0.1.14", venv::OLD);
    let new = venv::python("verifiers-0.4.0", venv::NEW);
    let gyms = root("environments/tests/packages/gyms.py").display().to_string();
    let echo_tool = venv::echo_tool().display().to_string();
    trains_two_steps(&venv::verifiers(), &gyms, "{}", false);
    trains_two_steps(&old, &gyms, "{}", false);
    trains_two_steps(&old, "stardata.envs.constraint_gym", "{topics_per_form = 1}", false);
    trains_two_steps(&new, "marble_v1", "{}", true);
    trains_two_steps(&new, &echo_tool, "{agent = {harness = {id = \"null\"}}}", true);
}

#[test]
#[ignore = "needs a checkout of the library: `just tool-test CHECKOUT`"]
fn tool_test_trains_two_steps() {
    let old = venv::python("verifiers-0.1.14", venv::OLD);
    for python in [venv::verifiers(), old] {
        trains_two_steps(&python, venv::tool_test().to_str().unwrap(), "{}", true);
    }
}

/// Trains with every group, and without the network. Environments with `long` prompts use a model with a larger
/// context.
fn trains_two_steps(python: &Path, id: &str, args: &str, long: bool) {
    let dir = tempfile::tempdir().unwrap();
    let config = root("configs/python_classic.toml");
    let sets = [("id", id), ("python", python.to_str().unwrap()), ("args", args)]
        .map(|(k, v)| format!("env.{k}={v}"));
    let mut command = run(&config, &dir.path().join("run"), &["--max-steps", "2"]);
    // Some of these have rewards that raise, which the library makes a 0 of.
    command.args(["--set", "env.on_bad_reward=zero"]);
    for set in &sets {
        command.args(["--set", set]);
    }
    if long {
        drop(smollm2());
        command.args(["--set", "model.base_model=HuggingFaceTB/SmolLM2-135M-Instruct"]);
        command.args(["--set", "model.renderer_name=chatml"]).env("MINDS_MODELS", models().root().unwrap());
    }
    // No server listens there. A search for an installer would leave files in the home folder.
    command.env("HTTPS_PROXY", "http://127.0.0.1:9").env("HOME", dir.path());
    let (code, out, err) = output(command.current_dir(root("")));
    assert_eq!(code, Some(0), "{id} on {}: {out}\n{err}", python.display());
    assert_eq!(steps(&dir.path().join("run")), [1, 2], "{id}");
    for row in metrics(&dir.path().join("run")) {
        let counts = (row["env/all/total_episodes"], row["env/all/missing_episodes"]);
        assert_eq!(counts, (8.0, 0.0), "two groups of four: {id} on {}", python.display());
    }
    assert!(!dir.path().join(".local").exists(), "{id} has installed something");
}

#[test]
fn python_packages_are_shown_and_answers_to_them_scored() {
    let example = "./environments/python/example_classic";
    let (code, out, err) = actors(&["envs", "show", example]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("classic environment `SpellBackwards` on Python 3."), "{out}");
    assert!(out.contains("[user] Spell backwards, letters only: "), "{out}");
    let word = out.trim_end().lines().find_map(|line| line.split_once("letters only: ")).unwrap().1;
    let backwards: String = word.chars().rev().collect();
    // Half for the letters that are right, half for being letters: all of both.
    let score =
        ["envs", "score", example, "--index", "0", "--model", "tiny-random", "--json", "--completion"];
    let (code, out, err) = actors(&[&score[..], &[&backwards]].concat());
    assert_eq!(code, Some(0), "{err}");
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&found["reward"], &found["metrics"]["exact"]), (&1.0.into(), &1.0.into()), "{found}");
}

#[test]
fn keys_of_python_packages_are_refused_without_a_python_package() {
    let dir = tempfile::tempdir().unwrap();
    for (set, words) in [
        ("env.id=target_number", "`env.workers` is for Python packages"),
        ("env.id=./environments/python/none", "there is no folder or file"),
        ("env.id=no_such_module", "finds no module of that name"),
        ("scorer.policy=base", "leave it out"),
    ] {
        let config = root("configs/python_classic.toml");
        let mut command = run(&config, &dir.path().join("run"), &["--set", set, "--set", "env.args={}"]);
        let (code, _, err) = output(command.current_dir(root("")));
        assert_eq!(code, Some(2), "{set}: {err}");
        assert!(err.contains(words), "{set}: {err}");
    }
}

/// A reward in the manner of gradient_intuition: a fresh adapter for every rollout, one step, logprobs on both sides.
pub const BORROWS: &str = r#"
import os

import tinker
from tinker_cookbook.rl.types import Env, StepResult


class Taught(Env):
    def __init__(self, service, tokenizer, base_model):
        self.service, self.tokenizer, self.base_model = service, tokenizer, base_model

    async def initial_observation(self):
        return tinker.ModelInput.from_ints(self.tokenizer.encode("User: say a word\n\nAssistant:")), ["\n"]

    async def logprob(self, client, tokens):
        found = await client.compute_logprobs_async(tinker.ModelInput.from_ints(tokens))
        assert found[0] is None
        return sum(found[1:])

    async def step(self, action):
        assert all(isinstance(token, int) for token in action)
        training = await self.service.create_lora_training_client_async(base_model=self.base_model, rank=8)
        text = self.tokenizer.encode(" cats and dogs")
        datum = tinker.Datum(
            model_input=tinker.ModelInput.from_ints(text[:-1]),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData(data=text[1:], dtype="int64"),
                "weights": tinker.TensorData(data=[1.0] * (len(text) - 1), dtype="float32"),
            },
        )
        before = await self.logprob(await training.save_weights_and_get_sampling_client_async("a"), text)
        passed = await training.forward_backward_async([datum], "cross_entropy")
        stepped = await training.optim_step_async(tinker.AdamParams(learning_rate=1e-2))
        outputs = (await passed.result_async()).loss_fn_outputs
        await stepped.result_async()
        assert abs(sum(outputs[0]["logprobs"].data) - before) < 1e-2
        after = await self.logprob(await training.save_weights_and_get_sampling_client_async("b"), text)
        return StepResult(reward=len(action) / 8, episode_done=True, metrics={"change": after - before})


class Builder:
    async def build(self, sampling_client, *, service_client, base_model, training_client):
        assert training_client is None, "the adapter in training is not accessible"
        return [Taught(service_client, sampling_client.tokenizer, base_model) for _ in range(3)]


def load_environment():
    assert "TINKER_API_KEY" not in os.environ
    return Builder()
"#;

#[test]
fn rewards_may_train_an_adapter_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let package = dir.path().join("borrows.py");
    std::fs::write(&package, BORROWS).unwrap();
    let id = format!("env.id={}", package.display());
    let config = root("configs/python_classic.toml");
    let sets = ["--max-steps", "2", "--set", &id, "--set", "env.args={}"];
    let mut command = run(&config, &dir.path().join("run"), &sets);
    let (code, out, err) = output(command.env("TINKER_API_KEY", "tml-not-for-environments"));
    assert_eq!(code, Some(0), "{out}\n{err}");
    for row in metrics(&dir.path().join("run")) {
        let (_, change) = row.iter().find(|(key, _)| key.ends_with("change")).unwrap();
        assert!(*change > 0.1, "a step on a text makes it likelier: {row:?}");
    }
    // It asks with tokens; their text is what was said.
    let said = serde_json::json!([{"role": "user", "content": "User: say a word\n\nAssistant:"}]);
    assert!(prompts(&dir.path().join("run")).iter().all(|prompt| *prompt == said));
}
