"""The report of a model that was saved from Python: what the fitted estimator itself knows, without a summary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

from irmtv._version import __version__
from irmtv.app.fit.summary import Curves, PathPoint
from irmtv.app.pages.feature_figures import MOST_FEATURES
from irmtv.app.pages.model import OUTCOMES, plain_value
from irmtv.app.pages.model_figures import curves_figure, path_figure
from irmtv.core.numbers import decimal, probability, several, short
from irmtv.html.drawing import known
from irmtv.html.page import Badge, Block, Chapter, Content, Headline, Section, table, text

# columns of `cv_results_` that are no hyper-parameters
MEASURED = ("step", "risk", "worst_risk", "p_slopes", "p_risks", "left_out_risk", "plain", "selected")


def estimator_content(model: Any, name: str = "") -> Content:
    """The page of a fitted estimator or Pipeline.

    Parameters
    ----------
    model : estimator of irmtv, or Pipeline that ends in one
        Fitted.
    name : str, default ""
        Of the file it comes from.

    Returns
    -------
    Content
        For `irmtv.html.page.page`.
    """
    steps = [(step, type(part).__name__) for step, part in model.steps] if isinstance(model, Pipeline) else []
    estimator = model.steps[-1][1] if isinstance(model, Pipeline) else model
    sections: list[Section] = []
    results = getattr(estimator, "cv_results_", None)
    if isinstance(results, pd.DataFrame) and len(results):
        points = path_points(results)
        blocks = [path_figure(points), _path_table(points)]
        sections.append(_section("path", "The path of penalty weights", "held-out rows", blocks))
    coefficients = _coefficients(estimator)
    if coefficients is not None:
        sections.append(coefficients)
    curves = history_curves(getattr(estimator, "history_", None))
    if curves is not None:
        sections.append(_section("training", "Training", "", [curves_figure(curves)]))
    sections += _environments(estimator)
    settings = {key: value for key, value in estimator.get_params(deep=False).items() if value is not None}
    how: list[Section] = []
    if steps:
        how.append(_section("steps", "Steps of the pipeline", "", [table(["step", "what"], [list(s) for s in steps])]))
    rows = [[key, plain_value(value)] for key, value in settings.items()]
    how.append(
        _section(
            "settings", "Settings", "as given; all others have their defaults", [table(["setting", "value"], rows)]
        )
    )
    chapters: list[Chapter] = [
        {"title": "What the model knows", "sections": sections},
        {"title": "Settings", "sections": how},
    ]
    return {
        "title": f"{type(estimator).__name__}{f' from {name}' if name else ''}",
        "headline": _headline(estimator),
        "lead": [
            "This model was saved from Python, so the page shows what the fitted estimator holds. "
            "irmtv fit stores more with the models that it makes: scores by environment, features, the data."
        ],
        "facts": _facts(estimator),
        "chapters": [chapter for chapter in chapters if chapter["sections"]],
        "foot": f"Made by irmtv {__version__}. Nothing in this page was loaded from elsewhere.",
    }


def path_points(results: pd.DataFrame) -> list[PathPoint]:
    """Each combination of hyper-parameters at its best step: the selected one, else that of the lowest risk."""
    axes = [c for c in results.columns if c not in MEASURED and results[c].astype(str).nunique() > 1]
    keys = results[axes].astype(str).agg(", ".join, axis=1) if axes else pd.Series("", index=results.index)
    points: list[PathPoint] = []
    for _, group in results.groupby(keys, sort=False):
        chosen = group[group["selected"]]
        finite = group["risk"].where(np.isfinite(group["risk"]), np.inf)
        best = chosen.iloc[0] if len(chosen) else group.iloc[int(np.argmin(finite))]
        weight = best.get("penalty_weight", 0.0)
        others = [f"{axis} {plain_value(_number(best[axis]))}" for axis in axes if axis != "penalty_weight"]
        points.append(
            {
                "penalty_weight": float(weight) if isinstance(weight, (int, float, np.number)) else float("nan"),
                "label": ", ".join([plain_value(_number(weight)), *others]),
                "step": int(best["step"]),
                "risk": _finite(best["risk"]),
                "worst": _finite(best["worst_risk"]),
                "variation": None,
                "p": _finite(best.get("p_slopes")),
                "passes": None,
                "chosen": len(chosen) > 0,
            }
        )
    return points


def history_curves(history: Any) -> Curves | None:
    """`history_` of an estimator as curves of risk; None where there is none."""
    if not isinstance(history, pd.DataFrame) or history.empty or not known(list(history["risk"])):
        return None
    wide = history.assign(environment=history["environment"].astype(str)).pivot_table(
        index="environment", columns="step", values="risk", sort=False
    )
    wide = wide[sorted(wide.columns)]
    return {
        "steps": [int(s) for s in wide.columns],
        "environments": [str(e) for e in wide.index],
        "risk": [[_finite(v) for v in row] for row in wide.to_numpy(np.float64)],
    }


def _headline(estimator: Any) -> Headline:
    selected: dict[str, Any] = dict(getattr(estimator, "selected_", None) or {})
    outcome: Any = selected.get("outcome")
    rule = str(selected.get("rule", "fixed"))
    badge: Badge = OUTCOMES.get(outcome, {"text": f"rule {rule}", "kind": "plain"})
    said = selected.get("message")
    if not said:
        objective = getattr(estimator, "objective_", None)
        said = f"A fitted {type(estimator).__name__}" + (f" with the objective {objective}." if objective else ".")
    return {"badge": badge, "text": str(said), "more": "", "numbers": []}


def _facts(estimator: Any) -> list[tuple[str, str]]:
    facts = []
    for name, attribute in (
        ("objective", "objective_"),
        ("features", "n_features_in_"),
        ("classes", "classes_"),
        ("environments", "environments_"),
        ("steps of training", "n_iter_"),
    ):
        value = getattr(estimator, attribute, None)
        if value is not None:
            many = isinstance(value, (list, tuple, np.ndarray))
            listed = (
                ", ".join(map(str, list(value)[:12]))
                + (f" and {len(value) - 12} more" if many and len(value) > 12 else "")
                if many
                else str(value)
            )
            facts.append((name, listed))
    return facts


def _coefficients(estimator: Any) -> Section | None:
    coef = getattr(estimator, "coef_", None)
    if coef is None:
        return None
    weights = np.atleast_2d(np.asarray(coef, dtype=np.float64))  # (C, D)
    names = getattr(estimator, "feature_names_in_", None)
    names = (
        [f"feature {i + 1}" for i in range(weights.shape[1])]
        if names is None or len(names) != weights.shape[1]
        else names
    )
    order = np.argsort(-np.abs(weights).max(0), kind="stable")[:MOST_FEATURES]
    classes = getattr(estimator, "classes_", None)
    heads = ["coefficient"]
    if len(weights) > 1:
        heads = (
            [str(c) for c in classes]
            if classes is not None and len(classes) == len(weights)
            else [f"output {i + 1}" for i in range(len(weights))]
        )
    rows = [[str(names[j]), *(short(float(w)) for w in weights[:, j])] for j in order]
    blocks: list[Block] = [table(["feature", *heads], rows, [False, *[True] * len(heads)])]
    blocks.append(text("In the units of the columns: coefficients of columns with different units cannot be compared."))
    if weights.shape[1] > MOST_FEATURES:
        blocks.append(text(f"The {MOST_FEATURES} largest of {weights.shape[1]:,}."))
    return _section("coefficients", "Coefficients", "linear model", blocks)


def _environments(estimator: Any) -> list[Section]:
    names = getattr(estimator, "environments_", None)
    if names is None:
        return []
    membership = getattr(estimator, "membership_", None)
    weights = getattr(estimator, "environment_weights_", None) if membership is None else np.asarray(membership).mean(0)
    if weights is None or len(weights) != len(names):
        return []
    rows = [
        [str(n), "–" if not np.isfinite(w) else f"{100 * float(w):.1f}"] for n, w in zip(names, weights, strict=True)
    ]
    strength = getattr(estimator, "strength_", None)
    blocks = [
        table(["environment", "share, %"], rows, [False, True]),
        *([text(str(strength))] if strength is not None else []),
    ]
    return [_section("environments", "Environments", several(len(rows), "environment"), blocks)]


def _path_table(points: list[PathPoint]) -> Block:
    rows = [
        [
            p["label"],
            f"{p['step']:,}",
            decimal(p["risk"]),
            decimal(p["worst"]),
            probability(p["p"]),
            "chosen" if p["chosen"] else "",
        ]
        for p in points
    ]
    columns = ["penalty weight λ", "step", "risk", "worst environment", "p of equal slopes", "choice"]
    return table(columns, rows, [True] * 5 + [False], ["good" if p["chosen"] else "plain" for p in points])


def _section(name: str, title: str, note: str, blocks: list[Block]) -> Section:
    return {"id": name, "title": title, "note": note, "badge": None, "blocks": blocks}


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _finite(value: Any) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
