"""Small made-up tables and records, for tests of what is done with real ones."""

from __future__ import annotations

import numpy as np
import pandas as pd

from irmtv.lab.real.splits import leave_each_out
from irmtv.lab.real.tables import RealTable

SITES = ("a", "b", "c", "d")


def number_table(n=40, seed=700):
    """y = 2 x + noise at four sites; a category that means nothing."""
    rng = np.random.default_rng(seed)
    site = np.repeat(SITES, n)
    x = rng.normal(size=len(site))
    features = pd.DataFrame({"x": x, "kind": rng.choice(["low", "high"], len(site))})
    y = 2 * x + 0.5 * rng.normal(size=len(site))
    return RealTable("numbers", features, y, site, leave_each_out(site), ("numbers: made up.",))


def class_table(n=60, seed=701):
    """Two classes at four sites, and a third class at site d alone."""
    rng = np.random.default_rng(seed)
    site = np.repeat(SITES, n)
    x = rng.normal(size=(len(site), 2))
    y = np.where(x[:, 0] + 0.3 * rng.normal(size=len(site)) > 0, "yes", "no").astype("<U5")
    y[-n // 3 :] = "maybe"
    features = pd.DataFrame(x, columns=["x", "z"])
    return RealTable("classes", features, y, site, leave_each_out(site), ("classes: made up.",))


def write_heart(folder, n=20, seed=702):
    """A file of the layout of heart_disease.csv, with gaps."""
    rng = np.random.default_rng(seed)
    hospitals = ("cleveland", "hungarian", "switzerland", "va")
    rows = pd.DataFrame({"hospital": np.repeat(hospitals, n)})
    for name in ("age", "trestbps", "chol", "thalach", "oldpeak", "ca"):
        rows[name] = rng.normal(100, 20, len(rows)).round(1)
    for name in ("sex", "fbs", "exang"):
        rows[name] = rng.integers(0, 2, len(rows)).astype(float)
    for name, most in (("cp", 4), ("restecg", 2), ("slope", 3), ("thal", 7)):
        rows[name] = rng.integers(1, most + 1, len(rows)).astype(float)
    rows.loc[::5, "chol"] = 0.0
    rows.loc[::7, "thal"] = np.nan
    rows["disease"] = rng.choice(["yes", "no"], len(rows))
    (folder / "heart_disease").mkdir(parents=True)
    rows.to_csv(folder / "heart_disease" / "heart_disease.csv", index=False)
    return rows


def record(family="linear", split="a", *, seed=0, table="classes", metric="accuracy", **more):
    """What `measure` returns of one of our families, and its key."""
    scores = {"score": 0.8, "se": 0.02, "by_environment": {split: 0.8}, "balanced_accuracy": 0.75, "log_loss": 0.5}
    interval = {"low": 0.7, "high": 0.9, "coverage": 0.9}
    made = {
        **{"table": table, "split": split, "family": family, "seed": seed, "rows": "x", "version": "0"},
        **{"metric": metric, "n_train": 90, "n_unseen": 30, "n_features": 2, "n_environments": 3, "in_time": False},
        **{"outcome": "erm-invariant", "message": "", "kept_plain": True, "gain": 0.0, "se": 0.0, "seconds": 1.0},
        **{"plain": scores, "chosen": scores, "left_out": {"plain": 0.8, "chosen": 0.8}, "held_out": {"plain": 0.9}},
        **{"expected": interval, "expected_held_out": interval},
    }
    return made | more


def baselines(split="a", table="classes", linear=0.7, trees=0.6):
    """What `measure` returns of scikit-learn's models, and its key."""
    models = {
        name: {"score": v, "balanced_accuracy": v, "log_loss": v} for name, v in (("linear", linear), ("trees", trees))
    }
    return record("scikit-learn", split, table=table) | {"models": models}
