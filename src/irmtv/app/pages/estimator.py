"""The report of a model that was saved from Python: what the fitted estimator itself knows, without a summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

from irmtv._version import __version__
from irmtv.app.fit.summary import Curves, PathPoint
from irmtv.app.pages.features import MOST_FEATURES
from irmtv.app.pages.model_figures import curves_figure, path_figure, path_table
from irmtv.core.messages import plain
from irmtv.core.numbers import percent, several, short
from irmtv.core.outcomes import OUTCOMES, Outcome
from irmtv.core.plain_json import finite, floats
from irmtv.html import drawing, page
from irmtv.selection.options import DEFAULTS

MOST_NAMES = 12  # of classes and environments among the facts
# columns of `cv_results_` that are no hyper-parameters
MEASURED = ("step", "risk", "worst_risk", "p_slopes", "p_risks", "left_out_risk", "plain", "selected")


def estimator_content(model: Any, name: str = "") -> page.Content:
    """The page of a fitted estimator, or of a Pipeline that ends in one; `name`: of the file it comes from."""
    steps = [[step, type(part).__name__] for step, part in model.steps] if isinstance(model, Pipeline) else []
    estimator = model.steps[-1][1] if isinstance(model, Pipeline) else model
    settings = {key: value for key, value in estimator.get_params(deep=False).items() if value is not None}
    curves = history_curves(getattr(estimator, "history_", None), _by_newton(estimator))
    given = "as given; all others have their defaults"
    sections = [page.section("settings", "Settings", given, [page.settings_table(settings)])]
    if steps:
        sections.insert(0, page.section("steps", "Steps of the pipeline", "", [page.table(["step", "what"], steps)]))
    return page.content(
        f"{type(estimator).__name__}{f' from {name}' if name else ''}",
        _headline(estimator),
        _facts(estimator),
        {
            "What the model knows": [
                *_path(getattr(estimator, "cv_results_", None)),
                *_coefficients(estimator),
                *([] if curves is None else [page.section("training", "Training", "", [curves_figure(curves)])]),
                *_environments(estimator),
            ],
            "Settings": sections,
        },
        __version__,
        lead=[
            "This model was saved from Python, so the page shows what the fitted estimator holds. "
            "irmtv fit stores more with the models that it makes: scores by environment, features, the data."
        ],
    )


def _by_newton(estimator: Any) -> bool:
    """Whether Newton's method has solved it: its history has ERM and the solution."""
    history = getattr(estimator, "history_", None)
    may = hasattr(estimator, "coef_") and getattr(estimator, "solver", "adam") in ("auto", "newton")
    return may and isinstance(history, pd.DataFrame) and set(history.get("step", ())) == {0, 1}


def _path(results: Any) -> list[page.Section]:
    if not isinstance(results, pd.DataFrame) or results.empty:
        return []
    points = path_points(results)
    block = path_figure(points, numbers=path_table(points, tested=False))
    return [page.section("path", "The path of penalty weights", "held-out rows", [block])]


def path_points(results: pd.DataFrame) -> list[PathPoint]:
    """Each combination of hyper-parameters at its best step: the selected one, else that of the lowest risk.

    Newton's method has one step, the solution; where it tried every weight with several classifiers and starts, each
    weight is shown at its best.
    """
    first = results["objective"].iloc[0] if "objective" in results else None
    newton = bool((results["step"] == 1).all())
    tried = ("classifier", "start") if newton and {"classifier", "start"} <= set(results.columns) else ()
    axes = [c for c in results.columns if c not in (*MEASURED, *tried) and results[c].astype(str).nunique() > 1]
    keys = results[axes].astype(str).agg(", ".join, axis=1) if axes else pd.Series("", index=results.index)
    points: list[PathPoint] = []
    for _, group in results.groupby(keys, sort=False):
        chosen = group[group["selected"]]
        risks = group["risk"].where(np.isfinite(group["risk"]), np.inf)
        best = chosen.iloc[0] if len(chosen) else group.iloc[int(np.argmin(risks))]
        weight = best.get("penalty_weight", 0.0)
        named = ("penalty_weight", "objective")
        others = [f"{axis} {page.value_text(plain(best[axis]))}" for axis in axes if axis not in named]
        beside = {"objective": str(best["objective"])} if first is not None and best["objective"] != first else {}
        more = beside | {name: best[name] for name in tried if weight and isinstance(best[name], str)}
        points.append(
            {
                "penalty_weight": float(weight) if isinstance(weight, (int, float, np.number)) else float("nan"),
                "label": ": ".join([*beside.values(), ", ".join([page.value_text(plain(weight)), *others])]),
                "step": int(best["step"]),
                "risk": finite(best["risk"]),
                "worst": finite(best["worst_risk"]),
                "variation": None,
                "p": finite(best.get("p_slopes")),
                "passes": None,
                "chosen": len(chosen) > 0,
                "solver": "newton" if newton else None,
                **more,  # type: ignore[typeddict-item]  # by variable
            }
        )
    return points


def history_curves(history: Any, newton: bool = False) -> Curves | None:
    """`history_` of an estimator as curves of risk; None where there is none. `newton`: by Newton's method."""
    if not isinstance(history, pd.DataFrame) or history.empty or not drawing.known(list(history["risk"])):
        return None
    wide = history.assign(environment=history["environment"].astype(str)).pivot_table(
        index="environment", columns="step", values="risk", sort=False
    )
    wide = wide[sorted(wide.columns)]
    return {
        "steps": [int(s) for s in wide.columns],
        "environments": [str(e) for e in wide.index],
        "risk": floats(wide.to_numpy(np.float64)),
        "solver": "newton" if newton else None,
    }


def _headline(estimator: Any) -> page.Headline:
    selected: dict[str, Any] = dict(getattr(estimator, "selected_", None) or {})
    outcome: Any = selected.get("outcome")
    rule = str(selected.get("rule", "fixed"))
    badge: page.Badge = {"text": f"rule {rule}", "kind": "plain"}
    if outcome in OUTCOMES:
        badge = {"text": OUTCOMES[outcome].title, "kind": _kind(outcome, selected.get("figures") or {})}
    answer = selected.get("message")
    if not answer:
        objective = getattr(estimator, "objective_", None)
        answer = f"A fitted {type(estimator).__name__}" + (f" with the objective {objective}." if objective else ".")
    return {"badge": badge, "text": str(answer), "more": "", "numbers": []}


def _kind(outcome: Outcome, figures: Mapping[str, Any]) -> page.Kind:
    """Good where a choice on half of the folds is borne out by the other; a warning where not, or nothing was found."""
    if outcome == "invariant-found":
        return "good" if (figures.get("p_confirmed") or 0.0) >= DEFAULTS["level"] else "partly"
    return "partly" if outcome == "none-found" or figures.get("contradicted") else "plain"


def _facts(estimator: Any) -> list[tuple[str, str]]:
    attributes = {
        "objective": "objective_",
        "features": "n_features_in_",
        "classes": "classes_",
        "environments": "environments_",
        "steps of Newton's method" if _by_newton(estimator) else "steps of training": "n_iter_",
    }
    values = {name: getattr(estimator, attribute, None) for name, attribute in attributes.items()}
    return [(name, _fact(value)) for name, value in values.items() if value is not None]


def _fact(value: Any) -> str:
    if not isinstance(value, (list, tuple, np.ndarray)):
        return str(value)
    more = f" and {len(value) - MOST_NAMES} more" if len(value) > MOST_NAMES else ""
    return ", ".join(map(str, list(value)[:MOST_NAMES])) + more


def _coefficients(estimator: Any) -> list[page.Section]:
    coef = getattr(estimator, "coef_", None)
    if coef is None:
        return []
    weights = np.atleast_2d(np.asarray(coef, dtype=np.float64))  # (C, D)
    n_outputs, n_features = weights.shape
    names = _names(estimator, "feature_names_in_", n_features, "feature")
    heads = ["coefficient"] if n_outputs == 1 else _names(estimator, "classes_", n_outputs, "output")
    order = np.argsort(-np.abs(weights).max(0), kind="stable")[:MOST_FEATURES]
    rows = [[names[j], *(short(float(w)) for w in weights[:, j])] for j in order]
    blocks: list[page.Block] = [page.table(["feature", *heads], rows, [False, *[True] * len(heads)])]
    blocks.append(
        page.text("In the units of the columns: coefficients of columns with different units cannot be compared.")
    )
    if n_features > MOST_FEATURES:
        blocks.append(page.text(f"The {MOST_FEATURES} largest of {n_features:,}."))
    return [page.section("coefficients", "Coefficients", "linear model", blocks)]


def _names(estimator: Any, attribute: str, n: int, what: str) -> list[str]:
    """The names that the estimator has; numbers where it has none or another number of them."""
    names = getattr(estimator, attribute, None)
    return [f"{what} {i + 1}" for i in range(n)] if names is None or len(names) != n else list(map(str, names))


def _environments(estimator: Any) -> list[page.Section]:
    names = getattr(estimator, "environments_", None)
    if names is None:
        return []
    membership = getattr(estimator, "membership_", None)
    weights = getattr(estimator, "environment_weights_", None) if membership is None else np.asarray(membership).mean(0)
    if weights is None or len(weights) != len(names):
        return []
    rows = [[str(name), percent(weight)] for name, weight in zip(names, weights, strict=True)]
    strength = getattr(estimator, "strength_", None)
    blocks = [
        page.table(["environment", "share, %"], rows, [False, True]),
        *([page.text(str(strength))] if strength is not None else []),
    ]
    return [page.section("environments", "Environments", several(len(rows), "environment"), blocks)]
