"""Summaries of fits as they are, without fitting: shapes, sizes and gaps at will; the numbers hang together."""

from __future__ import annotations

import copy
import math

import numpy as np

SITES = ("Aachen", "Bremen", "Chemnitz", "Dresden", "Erfurt")
ODD = (
    "<script>alert(1)</script>",
    "\"quoted\" & 'so'",
    "=cmd|' /C calc'!A0",
    "غرفة النوم",
    "🏠🏡 emoji 👩‍👩‍👧",
    "x" * 300,
    "two\nlines\tand a tab",
    "$5 and $6",
    "\x00control\x0b",
    "half \ud800 pair",
    "\u202eturned",
    "a,b;c",
    "</svg><img src=x onerror=alert(1)>",
    'style="fill: #123456" id="x"',
)


def estimate(value, half):
    return {"value": float(value), "low": float(value - half), "high": float(value + half)}


def row(name, rows, erm, chosen, half=0.02):
    return {
        "name": name,
        "rows": rows,
        "erm": estimate(erm, half),
        "chosen": estimate(chosen, half),
        "difference": estimate(chosen - erm, half / 2),
    }


def summary(
    n_environments=5,
    n_features=12,
    task="binary",
    n_aux=0,
    n_found=2,
    outcome="invariant-found",
    names=None,
    features=None,
    seed=0,
    known_features=True,
):
    """A fit of so many environments, features and aux columns."""
    rng = np.random.default_rng(seed)
    names = list(names or (SITES if n_environments <= len(SITES) else [f"site {i + 1}" for i in range(n_environments)]))
    names = names[:n_environments]
    features = list(features or [])[:n_features]
    features += [f"feature {i + 1}" for i in range(len(features), n_features)]
    regression = task == "regression"
    metric = "rmse" if regression else "accuracy"
    erm = rng.uniform(0.70, 0.95, len(names)) if not regression else rng.uniform(1.0, 3.0, len(names))
    chosen = rng.uniform(0.83, 0.88, len(names)) if not regression else rng.uniform(1.4, 1.8, len(names))
    environments = [row(n, int(rng.integers(80, 2000)), a, b) for n, a, b in zip(names, erm, chosen, strict=True)]
    worst = np.argmax if regression else np.argmin
    weights = [0.0, 1.0, 10.0, 100.0, 1e3, 1e4]
    risk = 0.32 + 0.02 * np.arange(6)
    path = [
        {
            "penalty_weight": w,
            "label": f"{w:g}",
            "step": 1000 + 40 * i,
            "risk": float(risk[i]),
            "worst": float(risk[i] + 0.4 * math.exp(-0.8 * i)),
            "variation": 0.3 * math.exp(-0.9 * i),
            "p": min(1.0, 10.0 ** (-7 + 1.6 * i)),
            "passes": i >= 4,
            "chosen": i == 4,
        }
        for i, w in enumerate(weights)
    ]  # fmt: skip
    steps = list(range(0, 1001, 20))
    risks = [[float(0.69 * math.exp(-s / 300) + 0.3 + 0.05 * math.sin(i) + 0.2 * (1 - e)) for s in steps]
             for i, e in enumerate(erm)]  # fmt: skip
    loadings = rng.normal(size=(2, n_features)) * np.exp(-np.arange(n_features) / 6)
    shares = loadings / np.abs(loadings).sum(1, keepdims=True)
    aux = ["sold", "latitude", "longitude", "age", "rooms"][:n_aux] + [f"aux {i}" for i in range(5, n_aux)]
    points = np.column_stack([rng.uniform(2014, 2016, 400), *rng.normal(47.5, 0.2, (max(n_aux - 1, 0), 400))])[
        :, :n_aux
    ]
    logits = (
        np.column_stack([np.zeros(400), *(6 * (points[:, 0] - 2015) + k for k in range(n_found - 1))])
        if n_aux
        else None
    )
    membership = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) if n_aux else None
    return {
        "schema": 1,
        "command": "irmtv fit sites.csv --target ill --environment site --out model.irmtv",
        "created": "2026-11-15T22:30:00+00:00",
        "seconds": {"reading": 0.4, "preparing": 1.1, "training": 38.0, "comparing": 2.2, "all": 41.7},
        "versions": {"irmtv": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "scikit-learn": "1.9.1"},
        "data": {
            "file": "sites.csv",
            "rows": 12345,
            "rows_used": 12000,
            "target": "price" if regression else "ill",
            "environment": ["site"] if names else [],
            "aux": aux,
            "columns": features,
            "features": n_features,
            "missing": {f: float(s) for f, s in zip(features[:3], (0.31, 0.024, 0.0005), strict=False)},
            "notes": ["345 rows without a value of ill were left out.", "Column 'when' was read as dates."],
        },
        "task": task,
        "classes": {"binary": ["no", "yes"], "multiclass": ["red", "green", "blue"], "regression": []}[task],
        "objective": "irm-tv-l1" if not n_aux else "minimax-tv-l1",
        "model": "linear",
        "settings": {"hidden": [], "max_steps": 2000, "learning_rate": 0.02, "l2": 0.0003, "cv": 5, "refit": True},
        "rule": "invariance" if outcome else "iid",
        "outcome": outcome,
        "headline": "The outcome in one sentence.",
        "message": "ERM is not invariant (p < 0.0001). Of 300 candidates 84 pass the test; the one with the lowest "
        "held-out risk was chosen.",
        "metric": metric,
        "greater_is_better": not regression,
        "environments": environments,
        "overall": row("overall", 12000, float(np.mean(erm)), float(np.mean(chosen)), 0.005),
        "worst": row(names[int(worst(chosen))], 300, float((np.max if regression else np.min)(erm)),
                     float((np.max if regression else np.min)(chosen))),
        "path": path,
        "curves": {"steps": steps, "environments": names, "risk": risks},
        "inferred": None if not n_aux else {
            "aux": aux, "is_date": [i == 0 for i in range(n_aux)], "points": points.tolist(),
            "membership": membership.tolist(), "names": [f"inferred {e + 1}" for e in range(n_found)],
        },
        "features": [
            {"name": f, "erm": float(a), "chosen": float(b), "invariant": (i % 2 == 0) if known_features else None}
            for i, (f, a, b) in enumerate(zip(features, *shares, strict=True))
        ],
        "losses": [
            {"model": "ERM", "penalty_weight": 0.0, "risk": [float(e if regression else 1.4 - e) for e in erm]},
            {"model": "TV-l1", "penalty_weight": 1e3, "risk": [0.45 + 0.01 * math.sin(i) for i, _ in enumerate(names)]},
            {"model": "TV-l2", "penalty_weight": 1e2, "risk": [0.47 + 0.03 * math.cos(i) for i, _ in enumerate(names)]},
        ],
    }  # fmt: skip


def with_unseen(made, kinds=("linear", "mlp", "trees"), missing="", kept=True):
    """The same with what models did in environments that training left out; the last kind is taken."""
    made, rng = copy.deepcopy(made), np.random.default_rng(7)
    families = []
    for kind in kinds:
        plain = rng.uniform(0.6, 0.9, len(made["environments"]))
        chosen = plain if kept or kind != kinds[-1] else plain + 0.03
        expected = [
            {"mean": float(v.mean()), "worst": float(v.min()), "low": float(v.mean() - 0.2), "high": 0.97}
            for v in (plain, chosen)
        ]
        rows = [
            {"name": r["name"], "rows": r["rows"], "plain": float(a), "chosen": float(b), "missing": missing}
            for r, a, b in zip(made["environments"], plain, chosen, strict=True)
        ]
        families.append({"name": kind, "model": kind, "taken": kind == kinds[-1], "plain_expected": expected[0],
                         "expected": expected[1], "environments": rows})  # fmt: skip
    made["new_environment"] = {
        "metric": made["metric"],
        "message": "",
        "left_out": "environments",
        "expected": families[-1]["expected"],
        "coverage": 0.9,
        "assumption": "if it is drawn as these were",
        "families": families,
        "seconds": 12.5,
    }
    rows = [{"name": kind, "model": kind, "risk": 0.4, "behind": 0.02, "error": None, "taken": kind == kinds[-1]}
            for kind in kinds]  # fmt: skip
    made["families"] = {"by": "left-out", "compared": rows, "message": f"{kinds[-1]} is taken."}
    return made


def with_erm_kept(made):
    """The same where the chosen model is ERM."""
    made = copy.deepcopy(made)
    for r in [*made["environments"], made["overall"], made["worst"]]:
        r.update(chosen=dict(r["erm"]), difference={"value": 0.0, "low": -1e-17, "high": 0.0})
    return made


def with_gaps(made):
    """The same with None wherever the type allows it."""
    made = copy.deepcopy(made)
    nothing = {"value": None, "low": None, "high": None}
    for r in [*made["environments"], made["overall"], made["worst"]]:
        r.update(erm=dict(nothing), chosen=dict(nothing), difference=dict(nothing))
    for p in made["path"]:
        p.update(risk=None, worst=None, variation=None, p=None, passes=None)
    if made["curves"]:
        made["curves"]["risk"] = [[None] * len(r) for r in made["curves"]["risk"]]
    for f in made["features"]:
        f.update(erm=None, chosen=None, invariant=None)
    for curve in made["losses"]:
        curve.update(penalty_weight=None, risk=[None] * len(curve["risk"]))
    for family in made.get("new_environment", {}).get("families", []):
        for r in family["environments"]:
            r.update(plain=None, chosen=None)
        for key in ("plain_expected", "expected"):
            family[key] = dict.fromkeys(("mean", "worst", "low", "high"))
    return made


def with_some_gaps(made):
    """Every second number is missing."""
    made = copy.deepcopy(made)
    for r in made["environments"][::2]:
        r["chosen"] = {"value": r["chosen"]["value"], "low": None, "high": None}
        r["erm"] = {"value": None, "low": None, "high": None}
    for p in made["path"][::2]:
        p.update(variation=None, p=None, passes=None)
    for r in made["curves"]["risk"] if made["curves"] else []:
        r[::2] = [None] * len(r[::2])
    for f in made["features"][::2]:
        f["chosen"] = None
    for curve in made["losses"]:
        curve["risk"][::2] = [None] * len(curve["risk"][::2])
    return made
