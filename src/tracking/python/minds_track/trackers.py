"""One class per tracker: how its package is called.

Each has the same methods: `start` begins or continues a run and returns the tracker's id of it, `log` sends numbers of
a step, `table` rollouts of a step, and `finish` the final state: finished, failed or killed.
"""

import json
import os
import posixpath
import re
import time
import uuid
from pathlib import Path
from typing import Any, Dict, List, Optional

from .run_folder import COLUMNS


class Wandb:
    """Weights & Biases. Its own process sends the rows; the settings of WANDB_* that a user has set are kept."""

    settle_s = 5.0
    SETTINGS = {
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",
        "WANDB_DISABLE_GIT": "true",
        "WANDB_DISABLE_CODE": "true",
        # They would be those of this process.
        "WANDB_X_DISABLE_STATS": "true",
    }
    EXIT_CODES = {"finished": 0, "failed": 1, "killed": 255}

    def start(self, folder: Path, project: str, name: str, run: Optional[str], config: Dict[str, Any]) -> str:
        for key, value in self.SETTINGS.items():
            os.environ.setdefault(key, value)
        os.environ.setdefault("WANDB_DIR", str(folder / "tracking"))
        import wandb

        self._wandb = wandb
        self._run = wandb.init(project=project, name=name, id=run or uuid.uuid4().hex[:8], resume="allow")
        self._run.config.update(config, allow_val_change=True)
        # Evaluations arrive after later steps, and the tracker's own step never goes back.
        self._run.define_metric("*", step_metric="step")
        return self._run.id

    def log(self, step: int, numbers: Dict[str, float]) -> None:
        self._run.log({"step": step, **numbers})

    def table(self, step: int, rows: List[List[Any]]) -> None:
        self._run.log({"step": step, "rollouts": self._wandb.Table(columns=COLUMNS, data=rows)})

    def finish(self, outcome: str) -> None:
        self._run.finish(exit_code=self.EXIT_CODES[outcome])


class Mlflow:
    """MLflow. Every request is answered before the next one is sent."""

    settle_s = 0.0
    # The caller tries again, and a request must not take minutes.
    SETTINGS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
    STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
    PARAMETER = 6000  # characters of a value
    NAME = 250  # characters of a name
    BATCH = 100  # parameters of a request; it may have 1000 metrics

    def start(self, folder: Path, project: str, name: str, run: Optional[str], config: Dict[str, Any]) -> str:
        for key, value in self.SETTINGS.items():
            os.environ.setdefault(key, value)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient()
        if run is None:
            experiment = self._client.get_experiment_by_name(project)
            experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(project)
            run = self._client.create_run(experiment_id, run_name=name).info.run_id
        else:
            self._client.update_run(run, status="RUNNING")
        self._id = run
        # A parameter cannot be changed: those of the first start stay.
        known = self._client.get_run(run).data.params
        parameters = [
            Param(key, value[: self.PARAMETER])
            for key, value in flattened(config).items()
            if key not in known
        ]
        for start in range(0, len(parameters), self.BATCH):
            self._client.log_batch(run, params=parameters[start : start + self.BATCH])
        return run

    def log(self, step: int, numbers: Dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(metric_name(name), value, now, step) for name, value in numbers.items()]
        for start in range(0, len(metrics), 1000):
            self._client.log_batch(self._id, metrics=metrics[start : start + 1000])

    def table(self, step: int, rows: List[List[Any]]) -> None:
        table = {"columns": COLUMNS, "data": rows}
        self._client.log_dict(self._id, table, f"rollouts/step_{step:06}.json")

    def finish(self, outcome: str) -> None:
        self._client.set_terminated(self._id, status=self.STATUS[outcome])


class Trackio:
    """Trackio, which keeps runs by name. It has no state of a run; a thread of this process writes the rows."""

    settle_s = 5.0

    def start(self, folder: Path, project: str, name: str, run: Optional[str], config: Dict[str, Any]) -> str:
        import trackio

        self._trackio = trackio
        # Names that begin with an underscore are the tracker's own.
        config = {key: value for key, value in config.items() if not key.startswith("_")}
        self._run = trackio.init(
            project=project,
            name=name,
            config=config,
            resume="never" if run is None else "allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return self._run.id

    def log(self, step: int, numbers: Dict[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def table(self, step: int, rows: List[List[Any]]) -> None:
        self._run.log({"rollouts": self._trackio.Table(columns=COLUMNS, data=rows)}, step=step)

    def finish(self, outcome: str) -> None:
        self._run.finish()


TRACKERS = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}


def metric_name(name: str) -> str:
    """The name under which MLflow has a number. It allows letters, digits and `/_-.: `; `@` becomes `_at_`, anything else
    `_`, and a path in a name must be in its shortest form."""
    allowed = re.sub(r"[^/\w.\- :]", "_", name.replace("@", "_at_"))
    return posixpath.normpath(allowed).lstrip("./")[: Mlflow.NAME] or "_"


def flattened(config: Dict[str, Any], prefix: str = "") -> Dict[str, str]:
    """The values of nested tables as texts, under names with dots."""
    flat: Dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat.update(flattened(value, f"{name}."))
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            named = {str(index): item for index, item in enumerate(value)}
            flat.update(flattened(named, f"{name}."))
        else:
            flat[metric_name(name)] = value if isinstance(value, str) else json.dumps(value)
    return flat
