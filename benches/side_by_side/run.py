"""Compares minds-actors with tinker-cookbook 0.6.1 on a simulated Tinker service: one table, one plot.

    python benches/side_by_side/run.py [--scenarios A2,B] [--seeds 5] [--python PYTHON_WITH_THE_PACKAGES]

Each scenario of scenarios.toml runs once per seed and client, in alternating order, each time against a fresh service. The
service and the client each have a core of their own. Step times, busy shares, staleness and waste are measured by the
service; CPU time and memory by the operating system. Without --python, a virtual environment is made in target/side_by_side.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import tomllib

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
WORK = ROOT / "target/side_by_side"
CLIENTS = ("minds-actors", "tinker-cookbook")
TICKS = os.sysconf("SC_CLK_TCK")
# The package needs a newer tml-renderers than some indexes have; it is only imported for models that are not used here.
PACKAGES = [
    "tinker==0.38.0", "tml-renderers==0.2.1", "torch>=2.8", "transformers>=4.57.6", "gguf", "matplotlib", "aiohttp", "anyio",
    "blobfile", "chz", "cloudpickle", "datasets", "huggingface-hub", "numpy", "pillow", "pyrage", "pydantic", "rich",
    "safetensors", "termcolor", "tiktoken", "tqdm",
]  # fmt: skip


def virtual_environment():
    folder = WORK / "venv"
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *PACKAGES], check=True)
        subprocess.run([*pip, "--no-deps", "tinker-cookbook==0.6.1"], check=True)
        (folder / "ready").touch()
    return python


def toml_value(value):
    """A value as TOML; JSON does for everything but tables."""
    match value:
        case dict():
            return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(toml_value, value)) + "]"
        case _:
            return json.dumps(value)


def settings_of(scenarios, name):
    defaults, own = scenarios["defaults"], scenarios["scenario"][name]
    service = {**defaults["service"], **own.get("service", {})}
    settings = {key: own.get(key, value) for key, value in defaults.items() if key != "service"}
    return {**settings, "about": own["about"], "service": {**service, "tokens": settings["tokens"]}}


def bound(settings):
    """Seconds that a step takes at least: the work of the trainer, or the wait for a group with (K + 1) batches under way."""
    import numpy

    service = settings["service"]
    groups, size, off_policy = settings["groups"], settings["group_size"], settings["off_policy"]
    random = numpy.random.default_rng(0)
    sample = service["sample"]
    sigma, shape = sample.get("sigma", 1.0), (200_000, size)
    times = sample["mean"] * numpy.exp(sigma * random.standard_normal(shape) - sigma**2 / 2)
    times *= numpy.where(random.random(shape) < sample["tail_share"], sample["tail_factor"], 1)
    training = service["forward_backward"] + service["datum_s"] * groups * size + service["optim_step"] + service["export"]
    slots = service.get("sampling_slots")
    sampling = groups * size * times.mean() / slots if slots else 0.0
    return max(training, times.max(axis=1).mean() / (off_policy + 1), sampling)


class CpuSamples:
    """CPU seconds of a process and its children over time, until it ends; and the most memory of all of them."""

    def __init__(self, pid):
        self.pid, self.samples, self.peak_mb, self.done = pid, [], 0.0, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def tree(self):
        found, parents = [self.pid], collections.defaultdict(list)
        for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(fields[1])].append(int(entry.parent.name))
        for pid in found:
            found += parents[pid]
        return found

    def watch(self):
        while not self.done.wait(0.25):
            cpu = rss = 0.0
            for pid in self.tree():
                try:
                    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    high = re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())
                except OSError:
                    continue
                cpu += (int(fields[11]) + int(fields[12])) / TICKS
                rss += int(high[1]) / 1024 if high else 0.0
            self.samples.append((time.monotonic(), cpu))
            self.peak_mb = max(self.peak_mb, rss)

    def between(self, begin, end):
        """CPU seconds between two times, by interpolation."""

        def at(when):
            before = [sample for sample in self.samples if sample[0] <= when]
            after = [sample for sample in self.samples if sample[0] > when]
            if not before or not after:
                return (before or after)[-1 if before else 0][1]
            (t0, c0), (t1, c1) = before[-1], after[0]
            return c0 + (c1 - c0) * (when - t0) / (t1 - t0)

        return at(end) - at(begin)


def pinned(core, command):
    return ["taskset", "-c", str(core), *map(str, command)] if shutil.which("taskset") else list(map(str, command))


def one_run(client, settings, seed, folder, options):
    """Runs one client against a fresh service; returns what was measured."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    service_file, events = folder / "service.toml", folder / "events.jsonl"
    service = {**settings["service"], "seed": seed}
    service_file.write_text("".join(f"{key} = {toml_value(value)}\n" for key, value in service.items()))
    serve = [options.program, "serve", "--simulated", service_file, "--addr", "127.0.0.1:0", "--events", events, "--json"]
    with open(folder / "service.log", "w") as log:
        served = subprocess.Popen(pinned(0, serve), stdout=subprocess.PIPE, stderr=log, text=True)
    began_service = time.monotonic()
    url = served.stdout.readline().split()[-1]
    environment = {**os.environ, "TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-of-a-benchmark", "HF_HUB_OFFLINE": "1"}
    if client == "minds-actors":
        command = [options.program, "run", HERE / "minds.toml", "--output-dir", folder / "run"]
        for key, value in [
            ("trainer.rollouts_per_example", settings["group_size"]),
            ("trainer.groups_per_batch", settings["groups"]),
            ("trainer.total_batches", settings["steps"]),
            ("trainer.async_off_policy_steps", settings["off_policy"]),
            ("trainer.args.max_new_tokens", settings["tokens"]),
            *options.set,
        ]:
            command += ["--set", f"{key}={value}"]
    else:
        plain = {key: value for key, value in settings.items() if key != "service"}
        plain |= {"base_model": service["base_model"], "gguf": str(options.gguf)}
        command = [options.python, HERE / "cookbook_client.py", json.dumps(plain)]
    began = time.monotonic()
    with open(folder / "client.log", "w") as log:
        process = subprocess.Popen(pinned(1, command), env=environment, stdout=log, stderr=subprocess.STDOUT)
    cpu = CpuSamples(process.pid)
    try:
        status = process.wait(timeout=options.timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        status = "timeout"
    cpu.done.set()
    cpu.thread.join()
    served.send_signal(signal.SIGINT)
    lines = served.stdout.read().splitlines()
    served.wait()
    summary = json.loads(next(line for line in lines if line.startswith("{")))
    marks, tokens = [], [0]
    first_sample = None
    for line in events.open():
        event = json.loads(line)
        if event["event"] == "sample" and first_sample is None:
            first_sample = event["at"]
        elif event["event"] == "trained":
            tokens[-1] += sum(sample[1] for sample in event["samples"])
        elif event["event"] == "ended" and event["request"] == "optim_step":
            marks.append(event["at"])
            tokens.append(0)
    first, last = summary["warm_up_steps"], len(marks) - summary["cool_down_steps"]
    if status == 0 and last > first > 0:
        steady = cpu.between(began_service + marks[first - 1], began_service + marks[last - 1])
        summary["cpu_us_per_token"] = 1e6 * steady / max(1, sum(tokens[first:last]))
        summary["cpu_s_per_step"] = steady / (last - first)
    summary |= {"status": status, "client": client, "seed": seed, "peak_mb": cpu.peak_mb}
    summary["start_s"] = None if first_sample is None else began_service + first_sample - began
    return summary


def cell(values, digits):
    values = [value for value in values if value is not None]
    if not values:
        return "–"
    middle = statistics.median(values)
    spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{middle:.{digits}f}{spread}"


def table(results):
    head = [
        "scenario", "client", "s/step", "bound", "training busy", "staleness mean / of tokens / p99 / max", "not trained", "faults met",
        "client CPU per trained token", "CPU per step", "peak memory", "start to first sample",
    ]  # fmt: skip
    rows = [head, ["---"] * len(head)]
    for (name, settings), runs in results.items():
        for client in CLIENTS:
            of = [run for run in runs if run["client"] == client]
            column = lambda key, scale=1.0: [run[key] and run[key] * scale for run in of if key in run]
            stale = [("mean", 2), ("token_mean", 2), ("p99", 0), ("max", 0)]
            stale = " / ".join(cell(column(f"staleness_{key}"), digits) for key, digits in stale)
            lost = [100 * run["not_trained"] / max(1, run["sampled"]) for run in of]
            failed = [run for run in of if run["status"] != 0]
            rows.append([
                f"{name}: {json.loads(settings)['about']}",
                client + (f" ({len(failed)} of {len(of)} failed)" if failed else ""),
                cell(column("step_s"), 3),
                f"{bound(json.loads(settings)):.3f}",
                cell(column("training_share", 100), 0) + "%",
                stale,
                cell(lost, 1) + "%",
                cell([sum(run["faults"].values()) for run in of], 0),
                cell(column("cpu_us_per_token"), 2) + " µs",
                cell(column("cpu_s_per_step", 1000), 0) + " ms",
                cell(column("peak_mb"), 0) + " MB",
                cell(column("start_s"), 2) + " s",
            ])  # fmt: skip
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def plot(results, path):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4))
    for at, ((name, settings), runs) in enumerate(results.items()):
        limit = bound(json.loads(settings))
        for client, shift, color in zip(CLIENTS, (-0.2, 0.2), ("#2a7f62", "#b0b0b0")):
            times = [run["step_s"] / limit for run in runs if run["client"] == client and run["step_s"]]
            if times:
                middle = statistics.median(times)
                error = [[middle - min(times)], [max(times) - middle]]
                axes.bar(at + shift, middle, 0.38, color=color, yerr=error, label=client if at == 0 else None)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(results)), [name for name, _ in results])
    axes.set_ylabel("time of a step / bound")
    axes.legend()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", help="names, separated by commas; default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--python", type=pathlib.Path, help="a Python that has the packages already")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/minds-actors")
    parser.add_argument("--models", type=pathlib.Path, help="cache of models, as MINDS_MODELS")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds of one run")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for minds-actors, to try a setting")
    parser.add_argument("--out", type=pathlib.Path, default=WORK)
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)  # it runs in the environment already
    options = parser.parse_args()
    options.set = [entry.split("=", 1) for entry in options.set]
    if not options.within:
        # The plot and the bound need the environment's packages.
        own = options.python.absolute() if options.python else virtual_environment()
        os.execv(own, [own, __file__, "--within", *sys.argv[1:]])
    options.python = pathlib.Path(sys.executable)
    models = options.models or pathlib.Path(os.environ.get("MINDS_MODELS", WORK / "models"))
    os.environ["MINDS_MODELS"] = str(models.absolute())
    scenarios = tomllib.loads((HERE / "scenarios.toml").read_text())
    model = scenarios["defaults"]["service"]["base_model"]
    subprocess.run([options.program, "models", "fetch", model], check=True)
    options.gguf = next(models.glob("**/*.gguf")).absolute()
    names = options.scenarios.split(",") if options.scenarios else list(scenarios["scenario"])
    options.out.mkdir(parents=True, exist_ok=True)
    results = collections.defaultdict(list)
    for seed in range(1, options.seeds + 1):
        for name in names:
            settings = settings_of(scenarios, name)
            clients = [client for client in CLIENTS if client in options.clients.split(",")]
            for client in clients if seed % 2 else clients[::-1]:
                run = one_run(client, settings, seed, options.out / f"{name}-{client}-{seed}", options)
                results[name, json.dumps(settings)].append(run)
                print(f"{name} seed {seed} {client}: {run['step_s']} s/step, status {run['status']}", flush=True)
                (options.out / "results.json").write_text(json.dumps([run for runs in results.values() for run in runs]))
                (options.out / "table.md").write_text(table(results))
    plot(results, options.out / "plot.svg")
    print(table(results))


if __name__ == "__main__":
    main()
