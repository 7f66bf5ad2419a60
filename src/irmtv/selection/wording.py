"""What the rule `invariance` decided, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from irmtv.core.outcomes import Outcome

SAME_DIRECTION = 0.03  # p-value from which on it is believed that all environments would choose the same direction
SAME_WAY = 0.002  # the same, in the direction of the candidate that would be taken
OWN_MODELS_ARE_WORSE = 0.95  # p-value of "no own model is better" above which they are worse, and show little
REFUSED = {  # why those that pass were not taken
    "halves": "not on each half of the folds",
    "small fault": "cost more than so small a fault of ERM",
    "far out": "cost so much that they would pay only very far from these environments",
    "not confirmed": "what half of the folds choose the other half refutes, and they do worse where left out",
}


def _told(risks: list[float | None], most: int = 8) -> str:
    """Risks by environment in words; of very many, how far they reach."""
    if len(risks) > most:
        known = [r for r in risks if r is not None]
        return f"from {min(known):.3g} to {max(known):.3g} in {len(known)} environments"
    return ", ".join("no rows" if r is None else f"{r:.3g}" for r in risks)


_WHAT = {
    "both": "slopes and risks equal over environments",
    "risks": "risks equal over environments",
    "slopes": "slopes equal over environments",
    "columns": "slopes of all columns equal over environments",
    "zero-slopes": "slopes zero in every environment",
}


def message(outcome: Outcome, f: Mapping[str, Any], o: Mapping[str, Any]) -> str:
    """The verdict in words, with the options of the rule."""
    level = o["level"]
    tested = f"{_WHAT.get(f['test'], _WHAT['both'])}, level {level:g}, {f['candidates']} candidates"
    if outcome == "erm-invariant":
        p, seen = f["p_erm"], ""
        if f["test"] == "both" and f["p_columns_erm"] is not None:
            p, tested = f["p_columns_erm"], f"{_WHAT['columns']}, level {level:g}, {f['candidates']} candidates"
        if f["detectable"] is not None:
            seen = f" It would have seen slopes that vary by {f['detectable']:.2g} (ERM gains {_gain(f):.2g})."
        return f"ERM passed the invariance test (p = {p:.2g}; {tested}) and is kept.{seen}"
    if outcome == "erm-kept":
        return _why_kept(f, tested)
    if outcome == "none-found":
        return _why_none(f, tested, level, o["max_price"])
    if f["test"] == "left-out":
        return (
            "a model was found that does better in environments which training did not see: left out in turn, its mean "
            f"risk there is {f['left_out']:.3g}, that of ERM {_risk(f['left_out_erm'])}. On held-out rows of "
            f"environments which training did see it has {f['risk']:.3g}; ERM has {f['risk_erm']:.3g}."
        )
    text = (
        f"an invariant model was found ({tested}; {f['passing']} pass; p = {f['p']:.2g}, ERM "
        f"{f['p_erm']:.1g}). Its held-out risk is {f['risk']:.3g}; ERM has {f['risk_erm']:.3g}: "
        "that is the price in the training environments."
    )
    if f["test"] != o["test"]:
        text = "Environments seem to differ in noise or base rate, so slopes decide alone: " + text
    if f["pays_at"] is not None and f["pays_at"] > 0:
        text += (
            " Its risk is higher than that of ERM in the worst of them, too: it pays where the "
            f"next environment lies further out by more than {f['pays_at']:.2g} times their spread."
        )
    if None not in (f["left_out"], f["left_out_erm"]) and f["left_out"] > f["left_out_erm"]:
        text += (
            f" In environments left out of training its mean risk is {f['left_out']:.3g}, that of ERM "
            f"{f['left_out_erm']:.3g}."
        )
    if f["p_confirmed"] is not None and f["p_confirmed"] < level:
        text += (
            f" Chosen on half of the folds and tested on the other it is not confirmed (p = {f['p_confirmed']:.1g})."
        )
    return text


def _risk(value: float | None) -> str:
    """Where it was left out: a model that diverged there has an infinite one."""
    return "infinite" if value is None else f"{value:.3g}"


def _gain(f: Mapping[str, Any]) -> float:
    return float(f["risk_constant"]) - float(f["risk_erm"])


def _why_kept(f: Mapping[str, Any], tested: str) -> str:
    if f["contradicted"]:
        p = f["p_erm"] if f["p_columns_erm"] is None else f["p_columns_erm"]
        return (
            f"ERM is kept: it passed the invariance test (p = {p:.2g}), but in environments left out of "
            f"training its mean risk is {_risk(f['left_out_erm'])}, where held-out rows promise {f['risk_erm']:.3g}. "
            "Something differs that the test does not see, and no candidate wins it back."
        )
    if f["blind"]:
        return (
            "ERM is kept: nothing was found against it, but these rows could not show much. Only slopes that vary by "
            f"{f['detectable']:.2g} or more would have been seen, and all that ERM gains over a constant is "
            f"{_gain(f):.2g}. More rows would tell."
        )
    text = f"ERM is kept: it differs between environments ({tested}; p = {f['p_erm']:.1g}), but "
    noise = "Environments seem to differ in noise or base rate, not in what predicts: invariance cannot help."
    if f["own_gain"] is not None:
        if f["p_own"] < SAME_DIRECTION and f["toward"]:
            clear = f"(p = {f['p_own']:.1g}; {SAME_WAY:g} is asked)"
            return text + f"these rows do not show clearly that some of them would go another way than others {clear}."
        if f["p_own"] < SAME_DIRECTION:
            noise = f" (with a standard deviation of {f['own_error']:.1g})" if f["own_error"] else ""
            gain = f"{max(0.0, f['own_gain']):.1g}{noise}, where ERM gains {_gain(f):.2g} over a constant"
            return text + f"nothing shows that models of their own would gain them much: {gain}."
        text += f"each of them would choose the same model, but for its scale (p = {f['p_own']:.2g}). "
        return text + noise
    text += f"no model trained on one environment alone beats it there (p = {f['p_own']:.2g}). "
    if f["p_own"] > OWN_MODELS_ARE_WORSE:
        return text + (
            "Nothing shows that environments differ in what predicts rather than in noise or base rate. The models "
            "of single environments are all worse, having fewer rows: a smaller model or more rows would test this "
            "harder."
        )
    return text + noise


def _why_none(f: Mapping[str, Any], tested: str, level: float, max_price: float) -> str:
    risks = _told(f["risks_erm"])
    if not f["candidates"]:
        return (
            f"ERM is not invariant ({_WHAT[f['test']]}, level {level:g}; p = {f['p_erm']:.1g}, "
            f"risks by environment {risks}), and there is nothing else to choose from."
        )
    if f["not_paying"]:
        return (
            f"ERM is kept, though it is not invariant ({tested}; p = {f['p_erm']:.1g}, risks "
            f"by environment {risks}): {f['not_paying']} with equal slopes cost more than "
            + (f"is accepted (max_price = {max_price:g}), or than " if max_price < float("inf") else "")
            + "they promise: nothing says that they would do better elsewhere. The environments may differ in noise or "
            "base rate."
        )
    if f["passing"]:
        return (
            f"ERM is kept, though it is not invariant ({tested}; p = {f['p_erm']:.1g}, risks by environment {risks}): "
            f"{f['passing']} pass, but {REFUSED[f['refused'] or 'halves']}."
        )
    nearest = "" if f["p_nearest"] is None else f" (nearest p = {f['p_nearest']:.1g})"
    return (
        f"ERM is kept, though it is not invariant ({tested}; p = {f['p_erm']:.1g}, risks by "
        f"environment {risks}): no candidate that predicts anything passes{nearest}. The environments may differ "
        "in noise or base rate, or the penalties were too weak."
    )
