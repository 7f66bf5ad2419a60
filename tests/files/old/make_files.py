"""Model files, an experiment's folder and JSON of the command line, as one commit of irmtv writes them.

    python make_files.py [FOLDER]        # FOLDER: where they go; without it, beside this script

Later code must read them and give the same numbers. Made by the commit that `expected.json` names under "made_by".
Seeds are fixed; a second run on the same machine with the same versions gives the same model files and numbers. What
differs from run to run are times: `created` and `seconds` in the fit summaries (and so in the bytes of fit_*.irmtv),
`started`, `seconds`, `host` and `pid` in experiment.sqlite, `seconds` in experiment.json.

rows.csv                300 rows: numbers, a text category, a date, gaps; classes (sold, grade) and a number (price)
NAME.irmtv              the models of MODELS below (Python), and fit_linear, fit_mlp, fit_trees (`irmtv fit`)
expected.json           {"made_by": ..., "models": {NAME: {"input": recipe, "predict": ..., "attributes": ...}}}
fit_*.json              what `irmtv fit --json` printed; diagnosis.json: `irmtv diagnose --json`
experiment.toml         the spec; experiment/: its folder; experiment_tables.txt, experiment.json: what `irmtv run` and
                        `irmtv run --json` (a second time: nothing is trained) printed; experiment_stderr.txt: beside it

How a test reads a model's rows, with the recipe from expected.json:

    frame = inputs(pd.read_csv("rows.csv"), **expected["models"][NAME]["input"])
    model = irmtv.load("NAME.irmtv", **({"module": network} if NAME == "module" else {}))
    model.predict(frame)            # equal to expected["models"][NAME]["predict"], and so on

`predict` and its kin are called on the first N_SHOWN rows alone (not on all of them, of which the first are kept).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

import irmtv
from irmtv import (
    EnvironmentInference,
    InvariantBoostingClassifier,
    InvariantBoostingClassifierCV,
    InvariantBoostingRegressor,
    InvariantClassifier,
    InvariantClassifierCV,
    InvariantRegressor,
    InvariantRegressorCV,
)

N_SHOWN = 20
SMALL = {"max_steps": 60, "learning_rate": 0.02, "random_state": 0}
TREES = {"n_estimators": 12, "num_leaves": 4, "n_jobs": 1, "random_state": 0}

# ---- rows -----------------------------------------------------------------------------------------------------------


def make_rows(n: int = 300, seed: int = 0) -> pd.DataFrame:
    """`size` tells what is sold everywhere, `fame` nearly always in north and south, and wrongly in the west."""
    rng = np.random.default_rng(seed)
    site = np.repeat(["north", "south", "west"], n // 3)
    truth = rng.normal(size=n)
    sold = truth + 0.5 * rng.normal(size=n) > 0
    agrees = rng.random(n) < np.repeat([0.98, 0.95, 0.3], n // 3)
    rows = pd.DataFrame(
        {
            "size": (50 + 10 * (truth + 0.4 * rng.normal(size=n))).round(2),
            "rooms": rng.integers(1, 6, n),
            "fame": (np.where(agrees == sold, 1.0, -1.0) + 0.5 * rng.normal(size=n)).round(4),
            "kind": rng.choice(["flat", "house, small", "hut"], n),
            "built": [f"20{k:02d}-03-11" for k in rng.integers(10, 24, n)],
            "time": np.linspace(0, 1, n).round(5),
            "site": site,
            "sold": np.where(sold, "yes", "no"),
        }
    )
    rows["grade"] = np.array(["a", "b", "c"])[np.digitize(truth, [-0.5, 0.5])]
    rows["price"] = (100 + 12 * truth + 5 * rows["rooms"] + rng.normal(size=n)).round(3)
    rows.loc[::9, "size"] = np.nan
    rows.loc[::7, "kind"] = None
    rows.loc[::11, "built"] = None
    return rows.sample(frac=1, random_state=seed).reset_index(drop=True)


def inputs(
    rows: pd.DataFrame, columns: Sequence[str], fill: float | None = None, categories: Sequence[str] = ()
) -> pd.DataFrame:
    """The features that a model reads: these columns, gaps of numbers filled, text as pandas categories."""
    frame = rows[list(columns)].copy()
    if fill is not None:
        frame = frame.fillna(dict.fromkeys(frame.select_dtypes("number"), fill))
    return frame.astype(dict.fromkeys(categories, "category"))


NUMBERS = {"columns": ["size", "rooms", "fame"], "fill": 50.0}
MIXED = {"columns": ["size", "rooms", "fame", "kind"], "categories": ["kind"]}  # boosting reads gaps as they are
RAW = {"columns": ["size", "rooms", "fame", "kind"]}


def network() -> nn.Module:
    """The factory of module.irmtv: `irmtv.load("module.irmtv", module=network)`."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


# ---- models of Python -----------------------------------------------------------------------------------------------


def make_models(rows: pd.DataFrame) -> dict[str, tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Name -> fitted model, recipe of its features, what predict needs beside them (by name: a column of rows)."""
    x, site, time = inputs(rows, **NUMBERS), rows["site"], rows[["time"]]
    with_site, timed = x.assign(site=site), x.assign(time=rows["time"])
    mixed = inputs(rows, **MIXED)
    sold, price, grade = rows["sold"].to_numpy(), rows["price"].to_numpy(), rows["grade"].to_numpy()
    chosen = {"hidden": (), "cv": 3, "penalty_weights": (0, 10, 1000), **{**SMALL, "max_steps": 200}}

    pipeline = Pipeline(
        [
            (
                "columns",
                ColumnTransformer(
                    [
                        ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["size", "rooms", "fame"]),
                        ("text", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["kind"]),
                    ]
                ),
            ),
            ("model", InvariantClassifier("irm-tv-l1", hidden=(4,), penalty_weight=10, **SMALL)),
        ]
    )
    return {
        # one of each kind
        "classifier": (
            InvariantClassifier("irm-tv-l1", environment="site", hidden=(5,), penalty_weight=10, **SMALL).fit(
                with_site, sold
            ),
            NUMBERS,
            {},
        ),
        "regressor": (InvariantRegressor("vrex", hidden=(), **SMALL).fit(x, price, environment=site), NUMBERS, {}),
        "classifier_cv": (InvariantClassifierCV(environment="site", **chosen).fit(with_site, sold), NUMBERS, {}),
        "minimax": (
            InvariantClassifier("minimax-tv-l1", aux="time", hidden=(5,), penalty_weight=10, **SMALL).fit(timed, sold),
            NUMBERS,
            {"membership": "time"},
        ),
        "inference": (
            EnvironmentInference("minimax", aux="time", n_shuffles=10, **SMALL).fit(timed, sold),
            {**NUMBERS, "columns": [*NUMBERS["columns"], "time"]},
            {},
        ),
        "boosting": (
            InvariantBoostingClassifier("vrex", penalty_weight=10, **TREES).fit(mixed, sold, environment=site),
            MIXED,
            {},
        ),
        "boosting_cv": (
            InvariantBoostingClassifierCV("vrex", penalty_weights=[10, 100], cv=3, **TREES).fit(
                mixed, sold, environment=site
            ),
            MIXED,
            {},
        ),
        "pipeline": (pipeline.fit(inputs(rows, **RAW), sold, model__environment=site), RAW, {}),
        "module": (
            InvariantClassifier("irm-tv-l1", module=network, penalty_weight=10, **SMALL).fit(x, sold, environment=site),
            NUMBERS,
            {},
        ),
        # more of the format: several classes, a sum with an object among its settings, aux beside x, clusters, ...
        "classifier_linear": (
            InvariantClassifier("irm-tv-l1", hidden=(), penalty_weight=10, **SMALL).fit(x, sold, environment=site),
            NUMBERS,
            {},
        ),
        "multiclass": (
            InvariantClassifier("vrex", hidden=(4,), classifier="vector", **SMALL).fit(x, grade, environment=site),
            NUMBERS,
            {},
        ),
        "sum": (
            InvariantClassifier(
                "irm-tv-l1+vrex",
                penalty_weight={"irm-tv-l1": 10.0, "vrex": 1.0},
                objective_params={"expand": irmtv.environments.Affine(4, 0.3)},
                hidden=(),
                **SMALL,
            ).fit(x, sold, environment=site),
            NUMBERS,
            {},
        ),
        "tiva": (InvariantClassifier("tiva", hidden=(), **SMALL).fit(x, sold, aux=time), NUMBERS, {"aux": "time"}),
        "regressor_cv": (
            InvariantRegressorCV(**{**chosen, "hidden": (4,)}, rule="worst-env", n_seeds=2).fit(
                x, price, environment=site
            ),
            NUMBERS,
            {},
        ),
        "inference_clusters": (EnvironmentInference("clusters", n_environments=3, **SMALL).fit(x), NUMBERS, {}),
        "boosting_regressor": (
            InvariantBoostingRegressor("vrex", penalty_weight=1, **TREES).fit(mixed, price, environment=site),
            MIXED,
            {},
        ),
    }


# ---- expected numbers -----------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """As JSON holds it; floats by repr, so that they come back bit for bit. float32 is written as its float64."""
    if isinstance(value, pd.DataFrame):
        return {str(name): plain(value[name].to_numpy()) for name in value}
    if is_dataclass(value):
        return plain(asdict(value))
    if isinstance(value, np.ndarray | torch.Tensor):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)


ATTRIBUTES = (
    *("objective_", "classes_", "coef_", "intercept_", "n_features_in_", "feature_names_in_"),
    *("environments_", "environment_weights_", "selected_", "best_params_", "best_score_"),
    *("n_steps_", "step_", "feature_importances_", "method_", "task_", "strength_"),
)


def expected(model: Any, frame: pd.DataFrame, more: Mapping[str, Any]) -> dict[str, Any]:
    """What the model predicts of the first rows, and what it remembers of its training."""
    frame = frame.head(N_SHOWN)
    beside = {name: values[:N_SHOWN] for name, values in more.items()}
    division = {"aux": beside.pop("membership")} if "membership" in beside else None
    last = model[-1] if isinstance(model, Pipeline) else model
    found: dict[str, Any] = {"class": type(last).__name__}
    for name in ("predict", "predict_proba", "decision_function"):
        if hasattr(model, name):
            found[name] = plain(getattr(model, name)(frame, **beside))
    if division is not None:
        found["membership"] = plain(model.membership(**division))
    found["parameters"] = {k: plain(v) for k, v in last.get_params().items() if not callable(v)}
    found["attributes"] = {name: plain(getattr(last, name)) for name in ATTRIBUTES if hasattr(last, name)}
    for name in ("history_", "cv_results_"):  # data frames, in part
        frame = getattr(last, name, None)
        if frame is not None:
            parts = {"first": plain(frame.head(3)), "last": plain(frame.tail(3))}
            found[name] = {"columns": [str(c) for c in frame], "rows": len(frame), **parts}
    if getattr(last, "membership_", None) is not None:
        found["attributes"]["membership_"] = plain(last.membership_[:N_SHOWN])
    return found


# ---- the command line -----------------------------------------------------------------------------------------------

SPEC = """\
name = "small"
description = "Two methods, two repetitions: a folder that later code must read."
repetitions = 2
compare_with = "TV-l1"

[data]
name = "simulation"
[data.arguments]
n_samples = 400
n_test = 200
[data.settings."strong"]
p_s = [0.999, 0.7]
p_v = 0.9

[training]
steps = 60
learning_rate = 0.05
snapshot_every = 20

[[methods]]
objective = "erm"
label = "ERM"

[[methods]]
objective = "irm-tv-l1"
label = "TV-l1"
warmup = 20
penalty_weight = [10, 1000]

[selection]
rules = ["iid", "worst-env", "invariance", "oracle"]
folds = 2
"""

FITS = {
    "linear": ["--target", "sold", "--environment", "site", "--steps", "150"],
    "mlp": ["--target", "price", "--environment", "site", "--steps", "60"],
    "trees": ["--target", "sold", "--environment", "site", "--rounds", "12"],
}
# the other targets are no features, nor is the time, which gives the site away
NOT_READ = {"sold": ["grade", "price", "time"], "price": ["grade", "sold", "time"]}


def irmtv_command(folder: Path, *arguments: str, said: list[str] | None = None) -> str:
    """Standard output of `irmtv ...`, run in the folder; what it says beside goes into `said`."""
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "irmtv.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    if said is not None:
        said.append(f"$ irmtv {' '.join(arguments)}\n{done.stderr}")
    return done.stdout


def fit_commands(folder: Path) -> dict[str, Any]:
    """fit_*.irmtv and fit_*.json, and what `irmtv predict` says of the first rows."""
    found = {}
    rows = pd.read_csv(folder / "rows.csv", dtype=str, keep_default_na=False)
    with tempfile.TemporaryDirectory() as scratch:
        for kind, options in FITS.items():
            target, name = options[1], f"fit_{kind}"
            unread = NOT_READ[target]
            table = Path(scratch) / "rows.csv"
            rows.drop(columns=unread).to_csv(table, index=False)
            arguments = ["fit", "rows.csv", *options, "--model", kind, "--penalty-weights", "10,1000", "--json"]
            arguments += ["--out", f"{name}.irmtv"]
            (folder / f"{name}.json").write_text(irmtv_command(Path(scratch), *arguments))
            shutil.copy(Path(scratch) / f"{name}.irmtv", folder)
            predictions = Path(scratch) / "predictions.csv"
            irmtv_command(folder, "predict", f"{name}.irmtv", "rows.csv", "--out", str(predictions))
            model = irmtv.load(folder / f"{name}.irmtv")
            features = [c for c in rows if c not in (*unread, target, "site")]
            frame = pd.read_csv(folder / "rows.csv")
            found[name] = {
                "command": ["irmtv", *arguments],
                "columns_left_out": unread,  # of rows.csv, before `fit` read it
                "input": {"columns": features},
                **expected(model, inputs(frame, features), {}),
                "irmtv_predict": predictions.read_text().splitlines()[: N_SHOWN + 1],
            }
    return found


def experiment(folder: Path) -> None:
    (folder / "experiment.toml").write_text(SPEC)
    for old in sorted((folder / "experiment").glob("*")):
        old.unlink()
    arguments = ["run", "experiment.toml", "--out", "experiment"]
    said: list[str] = []
    (folder / "experiment_tables.txt").write_text(irmtv_command(folder, *arguments, said=said))
    (folder / "experiment.json").write_text(irmtv_command(folder, *arguments, "--json", said=said))
    (folder / "experiment_stderr.txt").write_text("".join(said))


def diagnosis(folder: Path) -> None:
    arguments = ["--target", "sold", "--environment", "site", "--aux", "time", "--model", "linear", "--json"]
    (folder / "diagnosis.json").write_text(irmtv_command(folder, "diagnose", "rows.csv", *arguments))


# ---- all ------------------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    import lightgbm
    import pandas
    import sklearn
    import skrub

    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(irmtv.__file__).parent, capture_output=True, text=True
    ).stdout.strip()
    return {
        "commit": commit,
        "irmtv": irmtv.__version__,
        "python": sys.version.split()[0],
        **{m.__name__: str(m.__version__) for m in (torch, np, pandas, sklearn, lightgbm, skrub)},
    }


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    make_rows().to_csv(folder / "rows.csv", index=False)
    rows = pd.read_csv(folder / "rows.csv")
    models = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        made = make_models(rows)
    for name, (model, recipe, more) in made.items():
        path = irmtv.save(model, folder / f"{name}.irmtv")
        beside = {k: rows[[column]] for k, column in more.items()}
        loaded = irmtv.load(path, **({"module": network} if name == "module" else {}))
        says, again = (expected(m, inputs(rows, **recipe), beside) for m in (model, loaded))
        for entry in {*says, *again} - {"parameters"}:  # a file may write 10 as 10.0
            if json.dumps(says.get(entry)) != json.dumps(again.get(entry)):
                print(f"{name}: {entry} differs after loading (expected.json has what was loaded)")
        models[name] = {"input": recipe, **({"beside": more} if more else {}), **again}
        print(f"{name}.irmtv", path.stat().st_size, "bytes")
    models |= fit_commands(folder)
    written = {"made_by": versions(), "warnings": sorted({str(w.message) for w in warned}), "models": models}
    lines = [f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in written.pop("models").items()]
    head = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in written.items())
    (folder / "expected.json").write_text(f'{{\n{head},\n "models": {{\n' + ",\n".join(lines) + "\n }\n}\n")
    diagnosis(folder)
    experiment(folder)
    total = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    print(f"{total:,} bytes together")


if __name__ == "__main__":
    main()
