"""Shows runs in Weights & Biases (offline), MLflow (a server of its own) and Trackio (its local database), and reads the
numbers back with the packages themselves: `python trackers.py BINARY [TRIAL…]`, with the interpreter that has the
packages.

A run that is stopped and resumed, one whose tracker processes are killed, one with a process that hangs, and one that
is killed. Each must end in time, and every tracker must have every number of metrics.json and evals.jsonl.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

BINARY = Path(sys.argv[1]).resolve()
CONFIG = Path(__file__).parents[2] / "configs" / "ci_test.toml"
NAMES = ["wandb", "mlflow", "trackio"]
PROJECT = "trackers-test"
HELD = 'envs=[{id = "plain_letters"}, {id = "plain_letters", name = "held", weight = 0}]'
SETS = [
    HELD,
    "trainer.eval_every=5",
    "eval.episodes=3",
    "eval.samples_per_item=2",
    "log.to=" + json.dumps(NAMES),
    "log.python=" + json.dumps(sys.executable),
    f"log.project={PROJECT}",
    "metrics.addr=off",
    # Steps of this model take milliseconds, and a request of MLflow a multiple of that.
    "log.tracker_timeout=240s",
]


def wait_until(what, condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.1)


class TrackedRun:
    """A run in a folder, and what trackers have of it."""

    def __init__(self, folder):
        self.folder = folder

    def start(self, *extra):
        sets = [part for value in SETS for part in ("--set", value)]
        command = [BINARY, "run", CONFIG, "--output-dir", self.folder, *sets, *map(str, extra)]
        self.log = self.folder.with_suffix(".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def end(self, seconds=300):
        code = self.process.wait(seconds)
        text = self.log.read_text()
        assert code == 0, f"exit code {code}\n{text[-3000:]}"
        return text

    def place(self, tracker):
        return json.loads((self.folder / "tracking" / f"{tracker}.json").read_text())

    def tracker_processes(self):
        """Process ids by tracker: children of the run that follow its folder. The log that each writes tells which it is."""
        found = {}
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                is_child = f"PPid:\t{self.process.pid}\n" in (proc / "status").read_text()
                log = Path(os.readlink(proc / "fd" / "1"))
            except OSError:
                continue
            if is_child and log.parent == self.folder / "tracking":
                found[log.stem] = int(proc.name)
        return found

    def wait_for_places(self):
        def all_begun():
            try:
                return all(self.place(name)["step"] > 0 for name in NAMES)
            except (FileNotFoundError, ValueError):
                return False

        wait_until("every tracker has steps", all_begun)

    def expected(self):
        rows = json.loads((self.folder / "metrics.json").read_text())
        rows += [json.loads(line) for line in (self.folder / "evals.jsonl").read_text().splitlines()]
        return {
            (name, int(row["step"])): value
            for row in rows
            for name, value in row.items()
            if name != "step" and value is not None
        }

    def check(self, what, first=None):
        """Compares what each tracker has with the files; `first` are numbers of steps that were repeated."""
        expected = {**self.expected(), **(first or {})}
        assert len(expected) > 100
        for name, found in [("wandb", self.wandb()), ("mlflow", self.mlflow()), ("trackio", self.trackio())]:
            wanted = {(mlflow_name(key), step): value for (key, step), value in expected.items()} if name == "mlflow" else expected
            missing = sorted(set(wanted) - set(found))
            assert not missing, f"{what}: {name} misses {len(missing)} numbers: {missing[:3]}"
            assert found == wanted, f"{what}: {name} has other numbers: {set(found.items()) ^ set(wanted.items())}"
        print(f"ok  {what}: {len(expected)} numbers in each tracker", flush=True)

    def wandb_records(self):
        files = sorted(self.folder.glob(f"tracking/wandb/offline-run-*-{self.place('wandb')['run']}/*.wandb"))
        return [record for file in files for record in wandb_records(file)]

    def wandb(self):
        found = {}
        for record in self.wandb_records():
            if record.WhichOneof("record_type") != "history":
                continue
            row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            step = row.pop("step")
            for name, value in row.items():
                if not name.startswith(("_", "rollouts.")) and isinstance(value, (int, float)):
                    keep(found, name, step, value)
        return found

    def wandb_exit_codes(self):
        return [record.exit.exit_code for record in self.wandb_records() if record.WhichOneof("record_type") == "exit"]

    def mlflow(self):
        from mlflow.tracking import MlflowClient

        client = MlflowClient()
        run = self.place("mlflow")["run"]
        found = {}
        for name in client.get_run(run).data.metrics:
            for metric in client.get_metric_history(run, name):
                keep(found, name, metric.step, metric.value)
        return found

    def mlflow_run(self):
        from mlflow.tracking import MlflowClient

        return MlflowClient().get_run(self.place("mlflow")["run"])

    def trackio(self):
        from trackio.sqlite_storage import SQLiteStorage

        place = self.place("trackio")
        found = {}
        for row in SQLiteStorage.get_logs(PROJECT, place["run_name"], run_id=place["run"]):
            for name, value in row.items():
                if name not in ("step", "timestamp") and isinstance(value, (int, float)):
                    keep(found, name, row["step"], value)
        return found


def keep(found, name, step, value):
    """A number that was sent twice must be the same."""
    assert found.setdefault((name, step), value) == value, f"{name} of step {step}: {found[name, step]} and {value}"


def mlflow_name(name):
    return name.replace("@", "_at_")


def wandb_records(path):
    """The records of a file of W&B: protobuf messages in the format of LevelDB's log, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B", path
    position, message = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length = int.from_bytes(data[position + 4 : position + 6], "little")
        kind = data[position + 6]  # 1 whole, 2 first, 3 middle, 4 last part
        if position + 7 + length > len(data) or kind == 0:
            return  # its writer was killed
        part = data[position + 7 : position + 7 + length]
        message = part if kind in (1, 2) else message + part
        position += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(message)
            yield record


def mlflow_server(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts")]
    with (folder / "mlflow-server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def answers():
        assert server.poll() is None, (folder / "mlflow-server.log").read_text()
        try:
            return urllib.request.urlopen(f"{url}/health", timeout=2).status == 200
        except OSError:
            return False

    wait_until("the server of MLflow answers", answers)
    os.environ["MLFLOW_TRACKING_URI"] = url
    return server


def resumed(folder):
    run = TrackedRun(folder / "resumed")
    run.start("--max-steps", 12).end()
    before = {name: run.place(name)["run"] for name in NAMES}
    run.check("a run")
    assert run.mlflow_run().info.status == "FINISHED"
    run.start("--max-steps", 25).end()
    run.check("a resumed run")
    assert before == {name: run.place(name)["run"] for name in NAMES}, "the same run in each tracker"
    assert {run.place(name)["step"] for name in NAMES} == {25}
    assert run.wandb_exit_codes() == [0, 0], run.wandb_exit_codes()
    parameters = run.mlflow_run().data.params
    assert parameters["trainer.eval_every"] == "5" and parameters["envs.1.name"] == "held", parameters
    tables = [file.path for file in mlflow_client().list_artifacts(before["mlflow"], "rollouts")]
    assert tables == ["rollouts/step_000010.json", "rollouts/step_000020.json"], tables


def mlflow_client():
    from mlflow.tracking import MlflowClient

    return MlflowClient()


def trackers_killed(folder):
    run = TrackedRun(folder / "trackers_killed").start("--max-steps", 400)
    run.wait_for_places()
    processes = run.tracker_processes()
    assert sorted(processes) == sorted(NAMES), processes
    for process in processes.values():
        os.kill(process, signal.SIGKILL)
    log = run.end()
    for name in NAMES:
        assert f"tracker {name} ended and is restarted" in log, log[-3000:]
    run.check("tracker processes that were killed")


def tracker_stopped(folder):
    run = TrackedRun(folder / "tracker_stopped").start("--max-steps", 400, "--set", "log.tracker_timeout=20s")
    run.wait_for_places()
    stopped = run.tracker_processes()["mlflow"]
    os.kill(stopped, signal.SIGSTOP)
    wait_until("the last step", lambda: "\ntracking     wandb, mlflow, trackio: the rest" in run.log.read_text(), 300)
    begun = time.monotonic()
    log = run.end()
    took = time.monotonic() - begun
    assert 15 < took < 25, took
    assert "tracker mlflow did not finish in time and was ended" in log, log[-3000:]
    assert not Path(f"/proc/{stopped}").exists()
    assert run.mlflow_run().info.status == "RUNNING"
    subprocess.run([BINARY, "track", run.folder, "--to", "mlflow"], check=True, stdout=subprocess.DEVNULL)
    assert run.mlflow_run().info.status == "FINISHED"
    run.check(f"a process that hangs, and `track` afterwards (the end took {took:.0f} s)")


def run_killed(folder):
    # Far more steps than it has time for.
    run = TrackedRun(folder / "run_killed").start("--max-steps", 20000, "--set", "trainer.save_every=100")
    run.wait_for_places()
    wait_until("step 100", lambda: (run.folder / "checkpoints.jsonl").exists())
    run.process.kill()
    run.process.wait()
    first = run.expected()
    wait_until("MLflow shows that the run was killed", lambda: run.mlflow_run().info.status == "KILLED", 300)
    wait_until("W&B has the exit code", lambda: run.wandb_exit_codes() == [255])
    last = max(step for _, step in first)
    run.start("--max-steps", last + 20, "--set", "trainer.save_every=100").end()
    assert run.mlflow_run().info.status == "FINISHED"
    run.check("a run that was killed, with the first numbers of its repeated steps", first)


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder).resolve()
        os.environ.update(WANDB_MODE="offline", TRACKIO_DIR=str(folder / "trackio"), MINDS_LOG="warn", NO_COLOR="1")
        server = mlflow_server(folder)
        try:
            for trial in (resumed, trackers_killed, tracker_stopped, run_killed):
                if not sys.argv[2:] or trial.__name__ in sys.argv[2:]:
                    trial(folder)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


main()
