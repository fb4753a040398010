"""What the shipped configs learn: trains each of them with several seeds, and draws and judges the curves.

    python benches/learning.py target/learning [seed ...]

Before each run its base weights are evaluated over ten batches of episodes; what is there already is not done again. A
run has learned if the mean reward of its last ten steps lies more than three standard errors above that evaluation.
The best constant answer is what an answer that ignores the question would have earned on the questions of the last
ten steps: what lies below it needs no insight. Prints a table; the plots go beside docs/learning.md. Needs matplotlib.
"""

import json
import math
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
BINARY = ROOT / "target/release/minds-actors"
TASKS = ["target_number", "self_pred", "entropy_intuition", "ghost", "prophet", "gradient_intuition"]
SLOW = {"gradient_intuition"}  # each rollout measures a gradient step: hours, so the first seed alone
WINDOW, STEPS = 10, 60
GROUP_SIZE = 8
EVALUATION_SEED = 1000  # plus the run's: other samples than in training


def groups_per_batch(config: Path) -> int:
    line = next(line for line in config.read_text().splitlines() if line.startswith("groups_per_batch"))
    return int(line.split("=")[1])


def train(task: str, seed: int, folder: Path) -> None:
    """Evaluates the base weights and trains, as far as that has not been done."""
    config, run = ROOT / f"configs/train_{task}.toml", folder / f"{task}-{seed}"
    evaluation = run.with_suffix(".eval.json")
    if not evaluation.exists():
        episodes = WINDOW * groups_per_batch(config) * GROUP_SIZE
        command = [BINARY, "eval", config, "--json", "--seed", str(EVALUATION_SEED + seed)]
        found = subprocess.run(
            [*command, "--set", f"eval.episodes={episodes}"], check=True, stdout=subprocess.PIPE, text=True
        )
        evaluation.write_text(found.stdout)
    subprocess.run(
        [BINARY, "run", config, "--seed", str(seed), "--max-steps", str(STEPS), "--output-dir", run], check=True
    )


def best_prophecy(rollouts: list[dict]) -> float:
    """Lorentzian reward of width 1, one number for all items; a grid is fine enough."""
    truths = [r["metrics"]["truth"] for r in rollouts]
    grid = (i / 100 for i in range(-200, 801))
    return max(statistics.fmean(1 / (1 + (c - t) ** 2) for t in truths) for c in grid)


def best_confidence(rollouts: list[dict]) -> float:
    """The answers as they are, with one confidence for all: the Brier score is best at the share of right ones."""
    right = statistics.fmean(r["metrics"]["correct"] for r in rollouts)
    return 0.2 + 0.5 * right + 0.3 * (1 - right * (1 - right))


def best_entropy(rollouts: list[dict]) -> float:
    """The choices as they are, always valid, with one entropy for all: the absolute error is least at the median."""
    truths = [r["metrics"]["truth"] for r in rollouts]
    middle = statistics.median(truths)
    return 0.2 + 0.8 * statistics.fmean(1 - abs(middle - t) for t in truths)


def best_sequence(rollouts: list[dict]) -> float:
    """Mean reward of the best answer among those given to at least five words; NaN without one."""
    rewards = defaultdict(dict)
    for rollout in rollouts:
        rewards[rollout["turns"][0]["text"]][rollout["item"]] = rollout["reward"]
    return max((statistics.fmean(r.values()) for r in rewards.values() if len(r) >= 5), default=math.nan)


def best_bonus(rollouts: list[dict]) -> float:
    """The inner rewards as they are, with the running mean of the truths as the prediction."""
    bonus = statistics.fmean(r["metrics"]["bonus_of_mean"] - r["metrics"].get("bonus", 0) for r in rollouts)
    return statistics.fmean(r["reward"] for r in rollouts) + BONUS_WEIGHT * bonus


BONUS_WEIGHT = 0.3  # of gradient_intuition, by default
CONSTANT = {
    "target_number": lambda _: 1.0,
    "self_pred": best_confidence,
    "entropy_intuition": best_entropy,
    "ghost": best_sequence,
    "prophet": best_prophecy,
    "gradient_intuition": best_bonus,
}


def step_text(path: Path) -> str:
    """The lines of a step's rollouts, which are compressed where they are long."""
    if path.exists():
        return path.read_text()
    return subprocess.run(["zstdcat", f"{path}.zst"], check=True, capture_output=True, text=True).stdout


class Run:
    """The numbers of one run."""

    def __init__(self, task: str, seed: int, folder: Path):
        run = folder / f"{task}-{seed}"
        rows = json.loads((run / "metrics.json").read_text())
        if len(rows) < STEPS:
            raise ValueError(f"{run} has {len(rows)} of {STEPS} steps")
        found = json.loads(run.with_suffix(".eval.json").read_text())["metrics"]
        before = {key.rsplit("/", 1)[-1]: value for key, value in found.items()}
        self.rewards = [row["env/all/reward/total"] for row in rows]
        self.before = before["reward"]
        self.before_error = (before["reward_high"] - before["reward_low"]) / (2 * 1.96)
        last = self.rewards[-WINDOW:]
        self.after, self.after_error = statistics.fmean(last), statistics.stdev(last) / math.sqrt(WINDOW)
        self.z = (self.after - self.before) / math.hypot(self.before_error, self.after_error)
        mean = lambda key, part: statistics.fmean(row.get(key, 0.0) for row in part)
        self.mixed = mean("env/all/by_group/frac_mixed", rows[:20])
        self.valid = before["valid"], mean("env/all/valid", rows[-WINDOW:])
        self.entropy = mean("optim/entropy", rows[:WINDOW]), mean("optim/entropy", rows[-WINDOW:])
        self.gap = max(abs(row.get("optim/kl_sample_train_v2", 0.0)) for row in rows)
        self.minutes = sum(row["time/total"] for row in rows) / 60
        steps = range(STEPS - WINDOW + 1, STEPS + 1)
        texts = [step_text(run / f"rollouts/step_{step:06}.jsonl") for step in steps]
        rollouts = [json.loads(line) for text in texts for line in text.splitlines()]
        self.constant = CONSTANT[task](rollouts)


def table(runs: dict[str, dict[int, Run]]) -> None:
    print("| config | seed | before | last 10 steps | z | best constant | mixed groups | valid | entropy | KL v2 | min |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for task, seeds in runs.items():
        for seed, r in seeds.items():
            print(
                f"| {task} | {seed} | {r.before:.3f} ± {r.before_error:.3f} | {r.after:.3f} ± {r.after_error:.3f} "
                f"| {r.z:.1f} | {'–' if math.isnan(r.constant) else f'{r.constant:.3f}'} | {r.mixed:.2f} | {r.valid[0]:.2f} → {r.valid[1]:.2f} "
                f"| {r.entropy[0]:.2f} → {r.entropy[1]:.2f} | {r.gap:.4f} | {r.minutes:.1f} |"
            )


def plots(runs: dict[str, dict[int, Run]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    style = {"svg.hashsalt": "learning", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    matplotlib.rcParams.update(style)
    from matplotlib import pyplot

    rows = -(-len(runs) // 3)
    figure, axes = pyplot.subplots(rows, 3, figsize=(9, 2.6 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(runs):]:
        axis.set_visible(False)
    for axis, (task, seeds) in zip(axes.flat, runs.items()):
        for seed, run in seeds.items():
            (line,) = axis.plot(range(1, STEPS + 1), run.rewards, linewidth=1, label=f"seed {seed}")
            axis.plot([0], [run.before], marker="o", markersize=3, color=line.get_color())
        constant = statistics.fmean(run.constant for run in seeds.values())
        if not math.isnan(constant):
            axis.axhline(constant, color="grey", linestyle="--", linewidth=0.8, label="best constant")
        axis.set(title=task, xlabel="step", ylabel="mean reward")
    axes.flat[0].legend(frameon=False, fontsize=7)
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / "curves.svg", metadata={"Date": None})


def main() -> None:
    folder = Path(sys.argv[1])
    seeds = [int(seed) for seed in sys.argv[2:]] or [1, 2, 3]
    folder.mkdir(parents=True, exist_ok=True)
    of = {task: seeds[:1] if task in SLOW else seeds for task in TASKS}
    for task, some in of.items():
        for seed in some:
            train(task, seed, folder)
    runs = {task: {seed: Run(task, seed, folder) for seed in some} for task, some in of.items()}
    table(runs)
    plots(runs, ROOT / "docs/learning")


if __name__ == "__main__":
    main()
