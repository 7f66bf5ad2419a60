"""The paper's simulation table against ours: every published cell, the two claims in words, the distance to the limit.

    irmtv reproduce simulation --jobs 2 --out results/simulation
    python examples/reproduction.py results/simulation

reads what the first command has stored and trains nothing. With `--explain` it trains, for minutes, what the
explanations in docs/reproduction.md rest on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from irmtv import Runs, train
from irmtv.datasets import make_simulation
from irmtv.lab.experiments import load_spec
from irmtv.lab.experiments.papers import paper_spec
from irmtv.lab.tables import report_experiment

NEAR = 2.0  # published standard deviations
VERDICTS = ("inside", "better", "below")
COMPARED = (
    "IRM-TV-l2 (authors)",
    "IRM-TV-l2",
    "IRM-TV-l1",
    "ZIN (authors)",
    "Minimax-TV-l2",
    "Minimax-TV-l1",
)


def cells(summary: pd.DataFrame, rule: str) -> pd.DataFrame:
    """One row per published cell: its distance from ours in published standard deviations, and the verdict."""
    found = summary[(summary["rule"] == rule) & summary["published_mean"].notna()].copy()
    distance = found["difference_in_sd"]
    found["verdict"] = np.where(distance.abs() <= NEAR, "inside", np.where(distance > 0, "better", "below"))
    return found


def verdicts(summary: pd.DataFrame) -> Iterator[str]:
    found = cells(summary, "fixed")
    counts = found["verdict"].value_counts()
    yield f"{len(found)} published cells: " + ", ".join(f"{counts.get(v, 0)} {v}" for v in VERDICTS)
    yield ""
    yield "| method | inside 2 sd | better | below | range, in published sd |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for method, block in found.groupby("method", sort=False):
        n = block["verdict"].value_counts()
        low, high = block["difference_in_sd"].min(), block["difference_in_sd"].max()
        numbers = " | ".join(str(n.get(verdict, 0)) for verdict in VERDICTS)
        yield f"| {method} | {numbers} | {low:+.1f} to {high:+.1f} |"


def gaps(summary: pd.DataFrame) -> Iterator[str]:
    """Claim 1: mean minus worst is smaller for l1. Claim 2: it suffers less as p_s+ grows from 0.7 to 0.9."""
    yield "| rule | method | mean - worst, average | worst at p_s+ = 0.7 minus worst at 0.9 |"
    yield "| --- | --- | ---: | ---: |"
    sampled = summary[summary["metric"] == "accuracy"]
    for rule in ("published", "fixed", "invariance", "oracle"):
        for method in COMPARED:
            block = sampled[
                (sampled["method"] == method) & (sampled["rule"] == ("fixed" if rule == "published" else rule))
            ]
            column = "published_mean" if rule == "published" else "mean"
            by = block.pivot_table(index="setting", columns="summary", values=column)
            if by.empty:  # not in the paper
                continue
            fall = (
                by["worst"][by.index.str.contains("0.999,0.7")].mean()
                - by["worst"][by.index.str.contains("0.999,0.9")].mean()
            )
            yield f"| {rule} | {method} | {100 * (by['mean'] - by['worst']).mean():.1f} | {100 * fall:.1f} |"


def distances(summary: pd.DataFrame) -> Iterator[str]:
    """Average distance of the worst population accuracy from the limit, by rule, in points."""
    exact = summary[(summary["metric"] == "population accuracy") & (summary["summary"] == "worst")]
    table = (
        (100 * (exact["limit"] - exact["mean"])).groupby([exact["method"], exact["rule"]], sort=False).mean().unstack()
    )
    rules = [r for r in ("fixed", "invariance", "oracle") if r in table]
    yield "| method | " + " | ".join(rules) + " |"
    yield "| --- |" + " ---: |" * len(rules)
    for method, row in table[rules].iterrows():
        yield f"| {method} | " + " | ".join(f"{v:.1f}" for v in row) + " |"


def print_all(folder: Path) -> None:
    made = report_experiment(load_spec(paper_spec("simulation")), folder)
    for title, lines in (
        ("Published cells under `fixed`", verdicts(made.summary)),
        ("The claims in words, accuracy points", gaps(made.summary)),
        ("Distance of the worst population accuracy from the limit, points", distances(made.summary)),
    ):
        print(f"\n### {title}\n")
        print("\n".join(lines))


# ---- what the explanations rest on -----------------------------------------------------------------------------

SETTINGS = [(p_s, p_v) for p_s in (0.7, 0.8, 0.9) for p_v in (0.9, 0.8)]
BASE: dict[str, Any] = {"learning_rate": 5e-3, "l2": 1e-3}
LATE: dict[str, Any] = {**BASE, "warmup": 5000, "penalty_weight": 1e4}
HRM: dict[str, Any] = {"rounds": 3, "steps": 3000, "learning_rate": 1e-2, "l2": 1e-3, "gate_learning_rate": 1e-2}
HRM |= {"cluster_steps": 200, "cluster_learning_rate": 2e-2, "cluster_shrinkage": 10.0, "first_density": 1.0}
HRM |= {"gate_weight": 0.01, "penalty_weight": 300.0}
TIVA: dict[str, Any] = {**LATE, "learning_rate": 0.01, "warmup": 4500, "steps": 5000, "gate_weight": 0.03}
JOINT: dict[str, Any] = {**LATE, "steps": 5300, "variant": "joint"}


class Tried(NamedTuple):
    objective: str
    label: str
    published: str  # whose cells it stands beside
    settings: dict[str, Any]
    shown: tuple[int, ...]  # steps
    n_spurious: int = 10


TRIED = (
    Tried("erm", "ERM, fewer steps", "erm", {**BASE, "steps": 600}, (100, 200, 350, 600)),
    Tried("erm", "ERM, five spurious columns", "erm", {**BASE, "steps": 5300}, (5300,), 5),
    Tried("hrm", "HRM, five spurious columns", "hrm", HRM, (3000,), 5),
    Tried("groupdro", "groupDRO, five", "groupdro", {**BASE, "steps": 5300}, (5300,), 5),
    Tried("irm-tv-l1", "IRM-TV-l1, five", "irm-tv-l1", {**LATE, "steps": 5300}, (5300,), 5),
    Tried(
        "irm-tv-l2",
        "IRM-TV-l2 (authors), five",
        "irm-tv-l2",
        {**LATE, "steps": 5300, "reduction": "authors"},
        (5300,),
        5,
    ),
    Tried("minimax-tv-l1", "Minimax-TV-l1, five", "minimax-tv-l1", {**LATE, "steps": 5300}, (5300,), 5),
    Tried(
        "minimax-tv-l1",
        "Minimax-TV-l1, not divided by 1 + lambda",
        "minimax-tv-l1",
        {**LATE, "steps": 5600, "normalise": False},
        (5100, 5300, 5600),
    ),
    Tried("irm-tv-l1", "IRM-TV-l1, not divided", "irm-tv-l1", {**LATE, "steps": 5300, "normalise": False}, (5300,)),
    Tried("eiil", "EIIL joint, five", "eiil", JOINT, (5300,), 5),
    Tried("eiil", "EIIL joint, five, not divided", "eiil", {**JOINT, "normalise": False}, (5300,), 5),
    Tried("tiva", "TIVA, gate_weight 0.03", "tiva", TIVA, (5000,)),
)


def explain(published: dict[str, Any]) -> None:
    print("\n### Other settings: distance from the published cells, in published sd; mean and worst, six settings\n")
    print("| method | steps | inside 2 sd | " + " | ".join(f"({p_s}, {p_v})" for p_s, p_v in SETTINGS) + " |")
    print("| --- | ---: | ---: |" + " ---: |" * len(SETTINGS))
    for name, label, key, settings, shown, n_spurious in TRIED:
        rows: dict[int, list[str]] = {step: [] for step in shown}
        inside = dict.fromkeys(shown, 0)
        for p_s, p_v in SETTINGS:
            tasks = [make_simulation(5000, (0.999, p_s), p_v, n_spurious=n_spurious, random_state=i) for i in range(10)]
            every = int(np.gcd.reduce(shown))
            fitted = train(
                tasks, name, Runs(seed=range(10), data=range(10)), snapshot_every=every, keep_states=True, **settings
            )
            there = published[key][f"ps=(0.999,{p_s}),pv={p_v}"]
            for step in shown:
                table = 100 * fitted.at(step).evaluate().by_environment
                pair = []
                for summary, value in (("mean", table.mean()), ("worst", table.min(1).mean())):
                    z = (value - there[summary]["value"]) / there[summary]["std"]
                    inside[step] += abs(z) <= NEAR
                    pair.append(f"{z:+.1f}")
                rows[step].append(" / ".join(pair))
        for step in shown:
            print(f"| {label} | {step} | {inside[step]} of 12 | " + " | ".join(rows[step]) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="of irmtv reproduce simulation")
    parser.add_argument("--explain", action="store_true", help="train what the explanations rest on (minutes)")
    asked = parser.parse_args()
    if asked.folder is None and not asked.explain:
        parser.error("give the folder of the experiment, --explain, or both")
    if asked.folder is not None:
        print_all(asked.folder)
    if asked.explain:
        spec = load_spec(paper_spec("simulation"))
        assert spec.published is not None
        explain(spec.published.results)


if __name__ == "__main__":
    sys.exit(main())
