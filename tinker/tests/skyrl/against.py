#!/usr/bin/env python3
"""Tries the client against SkyRL's own Tinker server on this machine's CPU: `against.py VERSION...`.

For each version: a random model, a server on loopback, the tests of `tinker/tests/it/skyrl.rs`, and five steps of
`minds-actors run` with the ledger and every number checked. Needs Rust, Python 3.12 or newer with venv and pip, and the
package index; no GPU, no torch, no model hub. Everything lies in `target/skyrl`, or in the folder that MINDS_SKYRL names,
and is used again the next time.
"""

import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
HOME = pathlib.Path(os.environ.get("MINDS_SKYRL", ROOT / "target" / "skyrl")).resolve()
PYTHON = HOME / "venv" / "bin" / "python"

# What each version speaks, and its flags that the other one lacks.
WIRES = {"0.4.0": "protobuf", "0.3.0": "json"}
CHECKPOINT_FLAG = {"0.4.0"}

# What SkyRL needs for its JAX backend. The package itself asks for torch, ray and more, which this backend never uses.
PACKAGES = """tinker==0.25.0 jax==0.12.0.1 flax==0.12.12 optax==0.2.8 transformers==5.16.1 tokenizers==0.23.3 safetensors
jinja2 fastapi uvicorn sqlmodel sqlalchemy[asyncio] aiosqlite aiohttp psutil zstandard cloudpathlib rich""".split()

READY = "Starting background engine"
START_S, RUN_S = 300, 900
STEPS, GROUPS = 5, 10
# Largest difference between a sampled and a trained logprob of a step that is on policy.
AGREE = 1e-4


def must(condition, complaint):
    if not condition:
        sys.exit(f"FAILED: {complaint}")


def install(version):
    """Makes the environment once, and puts each version of SkyRL into a folder of its own."""
    ready = HOME / f"ready-{version}"
    if ready.exists():
        return
    must(sys.version_info >= (3, 12), f"SkyRL needs Python 3.12 or newer, this is {sys.version.split()[0]}")
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not (HOME / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", HOME / "venv"], check=True)
        subprocess.run([*pip, *PACKAGES], check=True)
        (HOME / "ready").touch()
    shutil.rmtree(HOME / version, ignore_errors=True)
    subprocess.run([*pip, "--no-deps", "--target", HOME / version, f"skyrl=={version}"], check=True)
    ready.touch()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def server(version, model):
    """A running server's address; the server and its engine end with the block."""
    folder = HOME / f"run-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    port, log = free_port(), folder / "server.log"
    backend = {
        "max_lora_adapters": 8,
        "max_lora_rank": 32,
        "train_micro_batch_size": 4,
        "sample_max_num_sequences": 4,
    }
    command = [HERE / "bin" / "uv", "run", "-m", "skyrl.tinker.api", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend", "jax", "--backend-config", json.dumps(backend), "--base-model", model]
    command += ["--database-url", f"sqlite:///{folder}/tinker.db", "--checkpoints-base", folder / "checkpoints"]
    if version in CHECKPOINT_FLAG:
        command += ["--base-model-checkpoint-path", model]
    environment = os.environ | {
        "PATH": f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{HOME / version}{os.pathsep}{HERE / 'stand_ins'}",
        "MINDS_SKYRL_PYTHON": str(PYTHON),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(HOME / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        # Rich breaks lines at 80 columns otherwise, also in the words that are waited for.
        "COLUMNS": "200",
    }
    with log.open("w") as out:
        # In a group of its own: asked alone, the server waits for open polls, and its engine may stay behind.
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        end = time.monotonic() + START_S
        while READY not in log.read_text():
            must(process.poll() is None, f"the server has ended: {log}\n{log.read_text()[-2000:]}")
            must(time.monotonic() < end, f"the server is not ready after {START_S} s: {log}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                pass
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def cargo(*arguments, **variables):
    """Runs cargo in the repository; answers with its exit code and everything that it said."""
    command = ["cargo", *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "TINKER_API_KEY"} | {"RUST_BACKTRACE": "0"} | variables
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_S
    )
    return done.returncode, done.stdout


def try_client(url, model, wire):
    variables = {"MINDS_SKYRL_URL": url, "MINDS_SKYRL_MODEL": str(model), "MINDS_SKYRL_WIRE": wire}
    filters = ["skyrl::", "--ignored", "--nocapture", "--test-threads=1"]
    code, said = cargo("test", "--release", "-q", "-p", "minds-tinker", "--test", "it", "--", *filters, **variables)
    print(said.strip())
    must(code == 0, "the tests of the client")


def try_run(url, model, folder):
    """Refuses to use older weights; then five steps: nothing lost, every number finite, on policy; then it goes on."""

    def run(*more, steps=STEPS):
        config = HERE.relative_to(ROOT) / "letters.toml"
        settings = [f"tinker.base_url={url}", f"model.base_model={model}", *more]
        flags = [flag for setting in settings for flag in ("--set", setting)]
        where = ["--output-dir", str(folder), "--max-steps", str(steps)]
        return cargo("run", "--release", "-q", "-p", "minds-actors", "--", "run", str(config), *flags, *where)

    for key in ("async_off_policy_steps", "eval_every"):
        shutil.rmtree(folder, ignore_errors=True)
        code, said = run(f"trainer.{key}=1")
        print(said.strip().splitlines()[-1])
        must(code == 2 and f"trainer.{key}=0" in said, f"{key} was not refused (exit code {code}): {said}")
    shutil.rmtree(folder, ignore_errors=True)
    code, said = run()
    print(said.strip())
    must(code == 0, f"the run ended with exit code {code}")
    ledger = rf"^groups +{GROUPS} opened, {GROUPS} trained, 0 filtered, 0 failed, 0 in flight"
    must(re.search(ledger, said, re.MULTILINE), "groups were lost")
    rows = json.loads((folder / "metrics.json").read_text())
    must([row["step"] for row in rows] == list(range(1, STEPS + 1)), "steps are missing")
    must(all(math.isfinite(number) for row in rows for number in row.values()), "a number is not finite")
    gap = max(row["optim/max_abs_logprob_gap"] for row in rows)
    print(f"largest gap between sampled and trained logprobs: {gap:.1e}")
    must(gap <= AGREE, f"sampled and trained logprobs differ by {gap}")
    # The model of the first part has been given up; its state has not.
    code, said = run(steps=STEPS + 2)
    print(said.strip())
    rows = json.loads((folder / "metrics.json").read_text())
    must(code == 0 and rows[-1]["step"] == STEPS + 2, f"the run did not go on (exit code {code})")


def main(versions):
    must(versions and all(version in WIRES for version in versions), f"name versions out of {', '.join(WIRES)}")
    HOME.mkdir(parents=True, exist_ok=True)
    for version in versions:
        print(f"== SkyRL {version}", flush=True)
        install(version)
        model = HOME / "model"
        subprocess.run([PYTHON, HERE / "model.py", model], check=True)
        with server(version, model) as url:
            try_client(url, model, WIRES[version])
            try_run(url, model, HOME / f"run-{version}" / "line")
    print("done")


main(sys.argv[1:])
