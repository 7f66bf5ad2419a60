"""The rule `invariance`: its outcomes on records made for each, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from irmtv.selection import (
    check_options,
    equal_means,
    extrapolated_risk,
    invariance,
    p_values,
    spread,
    zero_means,
)
from irmtv.selection.case import CHEAP, FURTHEST, STEADY, STRONG
from irmtv.selection.options import DEFAULTS
from selection.candidates import ASKEW, CLEARLY, ERM, SE, counted, p_of_both, p_of_difference, two, written

# The rule on records made for each outcome


def test_erm_is_kept_where_it_is_invariant():
    records = written([[0.40, 0.41], [0.45, 0.45], [0.42, 0.42]], SE)
    verdict = invariance(records)
    assert (verdict.index, verdict.outcome) == (0, "erm-invariant")
    f = verdict.figures
    assert f["price"] == 0 and f["gain_kept"] == pytest.approx(1) and f["p"] == f["p_erm"]
    assert (f["candidates"], f["passing"], f["not_paying"], f["p_confirmed"]) == (2, 2, 0, None)
    assert "ERM passed the invariance test" in verdict.message


def test_no_harm_even_where_a_better_and_more_invariant_candidate_is_there():
    verdict = invariance(written([[0.40, 0.44], [0.35, 0.35]], SE))
    assert (verdict.index, verdict.outcome) == (0, "erm-invariant")


def test_an_invariant_model_is_found_with_its_price():
    records = written([ERM, [0.44, 0.46], [0.45, 0.45], [0.35, 0.45], [0.50, 0.50]], SE, rows=[100.0, 300.0])
    verdict = invariance(records)
    assert (verdict.index, verdict.outcome) == (2, "invariant-found")
    f = verdict.figures
    p = p_of_both(np.array([0.02, 0.0, 0.1, 0.0]) / (SE * np.sqrt(2)), (100, 300))
    assert f["risk_erm"] == pytest.approx(0.45) and f["risk"] == pytest.approx(0.45)
    assert f["price"] == pytest.approx(f["risk"] - f["risk_erm"])
    assert (f["candidates"], f["passing"]) == (4, int((p >= 0.01).sum()))
    assert f["risk_extrapolated"] == pytest.approx(0.45)
    assert f["p_erm"] == pytest.approx(p_of_both(0.2 / (SE * np.sqrt(2)), (100, 300))) and f["p"] == 1
    assert "an invariant model was found" in verdict.message and "0.45" in verdict.message


def test_none_is_found():
    verdict = invariance(written([ERM, [0.35, 0.50], [0.40, 0.52]], SE, slope=[ASKEW] * 3, slope_se=SE))
    assert (verdict.index, verdict.outcome) == (0, "none-found")
    f = verdict.figures
    assert (f["passing"], f["price"]) == (0, 0)
    assert f["p_nearest"] == pytest.approx(p_of_both(0.12 / (SE * np.sqrt(2))))
    assert "not invariant" in verdict.message and "0.3, 0.5" in verdict.message


def test_erm_is_the_best_of_its_own_candidates():
    """Of several stopping times of ERM the one with the lowest held-out risk; the others, though
    they may be as good as invariant, are no candidates for an invariant model."""
    records = written([[0.42, 0.42], ERM, [0.45, 0.45]], SE, erm=[0, 1])
    verdict = invariance(records)
    assert verdict.figures["risks_erm"] == ERM
    assert (verdict.index, verdict.figures["candidates"]) == (2, 1)
    risks = [[0.42, 0.42], ERM, [0.35, 0.50]]
    alone = invariance(written(risks, SE, slope=[[0.0, 0.0], ASKEW, ASKEW], slope_se=SE, erm=[0, 1]))
    assert (alone.index, alone.outcome) == (1, "none-found")
    assert alone.figures["p_nearest"] == pytest.approx(p_of_both(0.15 / (SE * np.sqrt(2))))


def test_the_lowest_extrapolated_risk_of_those_that_pass():
    se = SE / np.sqrt(2)  # of each, so that a difference has SE
    apart = {"far": 2.5, "within": 0.4, "equal": 0.0, "beyond": 1.5}
    middle = {"far": 0.38, "within": 0.43, "equal": 0.44, "beyond": 0.42}

    def chosen(*names, **options):
        risks = [[middle[k] - SE * apart[k] / 2, middle[k] + SE * apart[k] / 2] for k in names]
        verdict = invariance(written([ERM, *risks], se), **options)
        return ["erm", *names][verdict.index], verdict.figures

    def score(name, reach=10.0, slack=0.5):
        return middle[name] + reach * SE * np.sqrt(max(0, apart[name] ** 2 - slack**2))

    everything = tuple(apart)
    name, f = chosen(*everything)
    assert name == "within" == min(everything, key=score) and f["passing"] == 4
    assert f["risk_extrapolated"] == pytest.approx(score("within"))
    assert chosen("far", "beyond")[0] == "beyond"
    assert chosen(*everything, reach=0)[0] == "far"  # the lowest risk that is not rejected
    assert chosen(*everything, slack=0.0)[0] == "equal"
    assert chosen(*everything, slack=3.0)[0] == "far"
    for reach in (0.3, 1.0, 30.0):
        assert chosen(*everything, reach=reach)[0] == min(everything, key=lambda k: score(k, reach)), reach
    p = p_of_both(2.5)
    assert 0.02 < p < 0.03
    assert chosen("far", "beyond", level=0.99 * p)[1]["passing"] == 2
    assert chosen("far", "beyond", level=1.01 * p)[1]["passing"] == 1
    assert chosen("far", level=1.01 * p)[0] == "erm"
    assert chosen("far", level=0.51 * p, test="risks")[0] == "erm"
    assert chosen("far", level=0.49 * p, test="risks")[0] == "far"


def test_a_model_that_predicts_next_to_nothing_is_not_taken():
    slope = [CLEARLY, [0.0, 0.0], [0.0, 0.0]]
    records = written([ERM, [0.90, 0.90], [0.99, 0.99]], SE, slope=slope, slope_se=SE, constant=1.0)
    found = invariance(records)
    assert (found.index, found.outcome) == (0, "none-found")
    assert found.figures["p_nearest"] is None and "nearest" not in found.message  # of those that predict anything
    assert invariance(records, min_gain=0.1).index == 1
    assert invariance(records, min_gain=0.1).figures["gain_kept"] == pytest.approx(0.1 / 0.6)
    assert invariance(records, min_gain=0.0).figures["passing"] == 2


@pytest.mark.parametrize("min_gain", [0.0, 0.2, 1.0])
def test_where_erm_is_worse_than_a_constant_a_candidate_must_not_be(min_gain):
    """A share of a loss is no gain: the threshold is then the constant itself."""
    erm, constant = [0.3125, 0.6875], 0.375  # ERM: 0.5 on average; numbers that floats hold exactly
    slope = {"slope": [ASKEW, [0.0, 0.0]], "slope_se": SE}
    worse = invariance(written([erm, [0.38, 0.38]], SE, constant=constant, **slope), min_gain=min_gain)
    assert (worse.index, worse.outcome) == (0, "none-found")
    assert worse.figures["p_nearest"] is None and worse.figures["gain_kept"] is None
    for risk in (0.375, 0.35):
        found = invariance(written([erm, [risk, risk]], SE, constant=constant, **slope), min_gain=min_gain)
        assert (found.index, found.outcome) == (1, "invariant-found")
        assert found.figures["gain_kept"] is None


@pytest.mark.parametrize(("min_gain", "useful"), [(0.0, 3), (0.25, 2), (0.5, 1), (0.75, 0)])
def test_the_share_of_erms_gain_that_must_be_kept(min_gain, useful):
    """ERM gains 0.5; the candidates 0.25, 0.125 and 0."""
    records = written([[0.25, 0.75], [0.75, 0.75], [0.875, 0.875], [1.0, 1.0]], SE, constant=1.0)
    assert invariance(records, min_gain=min_gain).figures["passing"] == useful


def test_candidates_that_are_not_known_are_never_taken():
    nan = np.nan
    records = written([[nan, nan], ERM, [nan, nan], [0.2, nan], [0.45, 0.45], [0.1, 0.1]], SE, erm=[0, 1])
    records.rows[0, 3, 1] = 0  # one environment only
    records.risk_cov[0, 5] = nan
    verdict = invariance(records)
    assert verdict.index == 4 and verdict.figures["candidates"] == 1
    assert verdict.figures["risks_erm"] == ERM


def test_an_environment_without_rows_is_left_out_and_stays_json():
    records = written([[*ERM, np.nan], [0.45, 0.45, np.nan]], SE, rows=[100.0, 100.0, 0.0])
    verdict = invariance(records)
    assert verdict.index == 1
    assert verdict.figures["risks"] == [0.45, 0.45, None]
    assert verdict.figures["pays_at"] == pytest.approx((0.45 - 0.5) / 0.2)
    json.dumps(verdict.figures, allow_nan=False)
    slope = [[*ASKEW, np.nan]]
    alone = invariance(written([[*ERM, np.nan]], SE, slope=slope, slope_se=SE, rows=[100.0, 100.0, 0.0]))
    assert "0.3, 0.5, no rows" in alone.message


@given(st.integers(0, 10**6), st.integers(2, 4), st.sampled_from(["both", "risks", "slopes", "zero-slopes"]))
@settings(deadline=None, max_examples=60)
def test_figures_agree_with_each_other(seed, environments, test):
    records, asked = random_records(seed, environments), test
    verdict = invariance(records, test=test, max_price=0.3)
    f = json.loads(json.dumps(verdict.figures, allow_nan=False))
    pooled = records.pooled()
    risk = ((records.rows * records.risk).sum((0, 2)) / records.rows.sum((0, 2))).numpy()
    gain = f["risk_constant"] - f["risk_erm"]
    useful = records.constant - risk >= DEFAULTS["min_gain"] * gain
    useful[:2] = False  # ERM
    dear = too_dear(risk, records)
    slopes_alone = f["test"] != test
    if slopes_alone:
        assert (test, f["test"]) == ("both", "slopes") and verdict.outcome != "none-found"
        p_both = p_values(pooled, "both").numpy()
        assert of_erm(p_both, risk, records) < 0.01
        passing_both = useful & ~dear & (p_both >= 0.01)
        if passing_both.any():  # the best of them fails on a half
            assert not taken_by_hand(records, "both", best(pooled, "both", passing_both), risk)
        test = f["test"]
    p = p_values(pooled, test).numpy()
    assert f["risk"] == pytest.approx(risk[verdict.index]) and f["risk_erm"] == pytest.approx(risk[:2].min())
    assert f["p"] == pytest.approx(p[verdict.index])
    assert f["price"] == pytest.approx(f["risk"] - f["risk_erm"], abs=1e-12)
    assert f["gain_kept"] == pytest.approx((f["risk_constant"] - f["risk"]) / gain)
    spread = max(f["risks_erm"]) - min(f["risks_erm"])
    assert f["pays_at"] == pytest.approx((max(f["risks"]) - max(f["risks_erm"])) / spread)
    assert f["passing"] <= f["candidates"] == len(records) - 2
    passing = useful & (p >= 0.01)
    refused = not_below_erm(extrapolated_risk(pooled, "risks", 10, 0.5).numpy(), risk, records)
    not_paying = int((passing & dear).sum())
    if verdict.outcome == "none-found" and test == "both":
        equal_slopes = useful & ~dear & (p_values(pooled, "slopes").numpy() >= 0.01)
        not_paying = max(not_paying, int((equal_slopes & refused).sum()))
    assert f["not_paying"] == not_paying
    passing &= ~dear
    assert f["passing"] == int(passing.sum())
    assert f["p_nearest"] == (pytest.approx(p[useful & ~dear].max()) if (useful & ~dear).any() else None)
    score = extrapolated_risk(pooled, test, DEFAULTS["reach"], DEFAULTS["slack"]).numpy()
    assert f["risk_extrapolated"] == pytest.approx(score[verdict.index])
    if verdict.outcome == "erm-invariant":
        assert f["p_erm"] >= 0.01 and f["price"] == 0
    else:
        assert f["p_erm"] < 0.01
    if verdict.outcome == "invariant-found":
        among = passing & ~refused if slopes_alone else passing
        assert verdict.index == np.where(among, score, np.inf).argmin() > 1
        confirmed = confirmed_by_hand(records, test)
        assert f["p_confirmed"] == (None if confirmed is None else pytest.approx(confirmed))
        halves = on_both_halves(records, test, verdict.index) if asked == "both" else None
        assert f["p_halves"] == (None if halves is None else pytest.approx(halves))
        assert asked != "both" or taken_by_hand(records, test, verdict.index, risk)
    else:
        assert f["p_confirmed"] is None and f["p_halves"] is None
    if verdict.outcome == "none-found" and test == "both":
        equal_slopes = useful & ~dear & ~refused & (p_values(pooled, "slopes").numpy() >= 0.01)
        for tier, among in (("both", passing), ("slopes", equal_slopes)):
            assert not among.any() or not taken_by_hand(records, tier, best(pooled, tier, among), risk)
        if passing.any() and not not_paying and f["p_erm"] <= STRONG:
            assert verdict.message.endswith("pass, but not on each half of the folds.")
    assert not f["blind"]  # that is known of linear models alone
    assert verdict.message.endswith(".") and "nan" not in verdict.message


def of_erm(values, risk, records):
    return values[np.where(records.reference.numpy(), risk, np.inf).argmin()]


def not_below_erm(further_out, risk, records):
    return further_out >= of_erm(further_out, risk, records)


def too_dear(risk, records):
    """Risk of all rows more than 30 % above that of ERM."""
    return risk > 1.3 * of_erm(risk, risk, records)


def halves_by_hand(records, test):
    """By half: p-values, and the choice of this half. Hard environments, each in every fold."""
    rows, risk, slope, risk_var, slope_var = (
        getattr(records, k).numpy() for k in ("rows", "risk", "slope", "risk_cov", "slope_cov")
    )
    erm = records.reference.numpy()
    halves = []
    for start in (0, 1):
        n = rows[start::2]  # (F, C, E)
        total = n.sum(0)
        few = total < 20
        share = n.sum(-1, keepdims=True) / n.sum((0, -1), keepdims=True).reshape(1, -1, 1)

        def mean(v, start=start, few=few, share=share):
            return two(np.where(few, np.nan, (share * v[start::2]).sum(0)))

        def variance(v, start=start, n=n, share=share):
            of_rows = ((n - 1) * n * v[start::2]).sum(0) / (n - 1).sum(0)
            return two(of_rows * (share**2 / n).sum(0))

        m, var, z, z_var = mean(risk), variance(risk_var), mean(slope), variance(slope_var)
        mean_risk = (n * risk[start::2]).sum((0, 2)) / total.sum(1)  # of all environments
        of_risks, of_slopes = equal_means(m, var, two(total)), equal_means(z, z_var, two(total))
        p = {
            "both": (2 * torch.minimum(of_risks, of_slopes)).clamp(0, 1),
            "risks": of_risks,
            "slopes": of_slopes,
            "zero-slopes": torch.where((~torch.as_tensor(few)).sum(1) > 1, zero_means(z, z_var, two(total)), torch.nan),
        }[test].numpy()
        what = (m, var) if test in ("both", "risks") else (z, z_var)
        score = mean_risk + 10 * spread(*what, 0.5, around_zero=test == "zero-slopes").numpy()
        gain = records.constant - mean_risk
        known = np.isfinite(p)
        if not (known & erm).any() or not (known & ~erm).any():
            return None
        passing = known & ~erm & (gain >= DEFAULTS["min_gain"] * max(0, gain[known & erm].max())) & (p >= 0.01)
        passing &= ~too_dear(mean_risk, records)
        halves.append((p, np.where(passing, score, np.inf).argmin() if passing.any() else None))
    return halves


def confirmed_by_hand(records, test):
    """What each half chooses, tested on the other: 0 where nothing passes in one, None where one cannot be tested."""
    halves = halves_by_hand(records, test)
    if halves is None:
        return None
    (p_even, from_even), (p_odd, from_odd) = halves
    if from_even is None or from_odd is None:
        return 0.0
    p = 2 * min(p_odd[from_even], p_even[from_odd])
    return None if np.isnan(p) else min(1, p)


def on_both_halves(records, test, index):
    """The candidate itself, on each half: twice the smaller p-value, None where a half cannot test it."""
    halves = halves_by_hand(records, test)
    if halves is None or any(np.isnan(p[index]) for p, _ in halves):
        return None
    return min(1, 2 * min(p[index] for p, _ in halves))


def taken_by_hand(records, test, index, risk):
    """It passes on each half, or none can tell and it does not cost everywhere; cheap where ERM fails by little."""
    pooled = records.pooled()
    p_erm, gain_erm = of_erm(p_values(pooled, test).numpy(), risk, records), records.constant - risk[:2].min()
    if p_erm > STRONG and records.constant - risk[index] < CHEAP * gain_erm:
        return False
    p, risks = on_both_halves(records, test, index), pooled.risk.numpy()
    if p is None:
        return bool((risks[index] <= of_erm(risks, risk, records)).any())
    return p >= STEADY


def best(pooled, test, among):
    score = extrapolated_risk(pooled, test, DEFAULTS["reach"], DEFAULTS["slack"]).numpy()
    return np.where(among, score, np.inf).argmin()


def random_records(seed, environments, candidates=7, folds=3, n=240):
    """Two candidates are ERM; risks fall where environments lie apart."""
    rng = np.random.default_rng(seed)
    q = np.eye(environments)[rng.permutation(np.arange(n) % environments)]
    apart = np.r_[1.0, 0.8, rng.uniform(0, 0.6, candidates - 2)]
    where = np.linspace(-1, 1, environments)
    mean = 0.6 - 0.2 * apart[:, None] + 0.3 * apart[:, None] * where  # (C, E)
    noise = rng.normal(size=n)
    loss = mean @ q.T + 0.5 * noise + 0.05 * rng.normal(size=(candidates, n))
    slope = apart[:, None] * 0.3 * (where @ q.T) + 0.5 * rng.normal(size=(candidates, n))
    fold = rng.permutation(np.arange(n) % folds)
    # by matrix products: `counted` loops over rows
    fields = {k: [] for k in ("rows", "risk", "risk_cov", "slope", "slope_cov")}
    for f in range(folds):
        part = q[fold == f]
        total = part.sum(0)
        fields["rows"].append(np.stack([total] * candidates))
        for name, v in (("risk", loss[:, fold == f]), ("slope", slope[:, fold == f])):
            means = v @ part / total
            fields[name].append(means)
            fields[f"{name}_cov"].append(((v**2) @ part / total - means**2) / (total - 1))
    first = written(mean.tolist(), 1.0, erm=[0, 1])
    return replace(first, **{k: two(v) for k, v in fields.items()})


@given(st.integers(0, 10**6), st.permutations([*range(7)]), st.permutations([*range(3)]))
@settings(deadline=None, max_examples=40)
def test_the_order_of_candidates_and_environments_does_not_matter(seed, order, environments):
    records = random_records(seed, 3)
    names = ("rows", "risk", "risk_cov", "slope", "slope_cov")
    moved = {k: getattr(records, k)[:, order][:, :, environments] for k in names}
    other = replace(records, **moved, reference=records.reference[order])
    a, b = invariance(records), invariance(other)
    assert (order[b.index], b.outcome) == (a.index, a.outcome)
    for name in ("p", "p_erm", "p_confirmed", "p_halves", "risk", "price", "pays_at"):
        if a.figures[name] is None:
            assert b.figures[name] is None
            continue
        assert b.figures[name] == pytest.approx(a.figures[name], rel=1e-6)


# Which test


def test_noise_that_differs_makes_risks_unequal_but_not_slopes():
    noisy = [[0.3, 0.6], [0.35, 0.62]]
    records = written(noisy, SE, slope=[[-0.1, 0.1], [0.0, 0.0]], slope_se=SE)
    assert invariance(records, test="slopes").index == 1
    assert invariance(records, test="slopes").outcome == "invariant-found"
    assert invariance(records, test="risks").outcome == "none-found"


SO_SLOPES = "Environments seem to differ in noise or base rate, so slopes decide alone: "


def test_slopes_decide_alone_where_nothing_passes_both():
    """Noise that differs: no risks are equal. Where something passes both, or nothing passes at all, `both` counts."""
    noisy = [[0.3, 0.6], [0.35, 0.62]]
    by_slopes = written(noisy, SE, slope=[[-0.1, 0.1], [0.0, 0.0]], slope_se=SE)
    verdict, slopes = invariance(by_slopes), invariance(by_slopes, test="slopes")
    assert verdict == replace(slopes, message=verdict.message)
    assert verdict.message.startswith(SO_SLOPES + "an invariant model was found (")
    assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (1, "invariant-found", "slopes")
    assert verdict.figures["p"] == 1 and "(slopes equal over environments" in verdict.message
    erm = invariance(written(noisy, SE, slope=[[0.0, 0.0], [0.0, 0.0]], slope_se=SE))
    assert (erm.index, erm.outcome, erm.figures["test"]) == (0, "erm-invariant", "slopes")
    assert erm.message.startswith("ERM passed the invariance test (p = 1; slopes equal over environments, ")
    none = invariance(written(noisy, SE, slope=[ASKEW, ASKEW], slope_se=SE))
    assert (none.outcome, none.figures["test"]) == ("none-found", "both")
    # candidate 1 passes by slopes with a lower risk; 2 passes both
    slope = [ASKEW, [0.0, 0.0], [0.0, 0.0]]
    both = invariance(written([ERM, [0.25, 0.45], [0.45, 0.45]], SE, slope=slope, slope_se=SE))
    assert (both.index, both.figures["test"]) == (2, "both")
    assert invariance(by_slopes, test="zero-slopes").figures["test"] == "zero-slopes"


@pytest.mark.parametrize(("dearer", "taken"), [(0.01, True), (0.05, False)])
def test_equal_slopes_must_pay_where_slopes_decide_alone(dearer, taken):
    """ERM's risks lie 0.2 apart. By hand: risk + 10 x (0.2 - half a standard error of it, plus 0.03 less, or more)."""
    apart = [0.3, 0.5 - 0.03] if taken else [0.3, 0.5 + 0.03]
    records = written([ERM, [r + dearer for r in apart]], SE, slope=[ASKEW, [0.0, 0.0]], slope_se=SE)
    verdict = invariance(records)
    if taken:
        assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (1, "invariant-found", "slopes")
        assert verdict.figures["not_paying"] == 0
    else:
        assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (0, "none-found", "both")
        assert verdict.figures["not_paying"] == 1
        assert verdict.message.endswith(
            "1 with equal slopes cost more than they promise: nothing says that they would do better elsewhere. "
            "The environments may differ in noise or base rate."
        )
    alone = invariance(records, test="slopes")  # who asks for slopes gets slopes
    assert (alone.index, alone.outcome, alone.figures["not_paying"]) == (1, "invariant-found", 0)


@pytest.mark.parametrize(("risk", "taken"), [(0.43, True), (0.45, False)])
def test_a_candidate_must_not_cost_too_much(risk, taken):
    """ERM's risks are 0.3 and 0.5, 0.4 over all rows: 10 % more is 0.44."""
    records = written([ERM, [risk, risk]], SE, slope=[CLEARLY, [0.0, 0.0]], slope_se=SE, constant=1.5)
    verdict = invariance(records, max_price=0.1)
    assert (verdict.index, verdict.outcome) == ((1, "invariant-found") if taken else (0, "none-found"))
    if not taken:
        assert verdict.figures["not_paying"] == 1
        assert verdict.message.endswith(
            "1 with equal slopes cost more than is accepted (max_price = 0.1), or than they promise: nothing says that "
            "they would do better elsewhere. The environments may differ in noise or base rate."
        )
    assert invariance(records).outcome == "invariant-found"  # no limit by default
    assert invariance(records, max_price=0).outcome == "none-found"


def test_the_risks_of_very_many_environments_are_told_by_their_range():
    many = np.linspace(0.2, 0.6, 30).tolist()
    message = invariance(written([many, many], SE, slope=[[*ASKEW] * 15] * 2, slope_se=SE)).message
    assert "risks by environment from 0.2 to 0.6 in 30 environments)" in message


@pytest.mark.parametrize("candidate", [None, [np.nan, np.nan]])
def test_with_nothing_but_erm_slopes_do_not_decide_alone(candidate):
    """Equal slopes would make ERM "invariant" though its risks differ, and there was nothing to fail both tests."""
    risks = [ERM] if candidate is None else [ERM, candidate]
    verdict = invariance(written(risks, SE))
    assert (verdict.index, verdict.outcome, verdict.figures["test"]) == (0, "none-found", "both")
    assert (verdict.figures["candidates"], verdict.figures["p_nearest"]) == (0, None)
    assert verdict.message == (
        "ERM is not invariant (slopes and risks equal over environments, level 0.01; "
        f"p = {p_of_both(0.2 / (SE * np.sqrt(2))):.1g}, risks by environment 0.3, 0.5), and there is nothing else to "
        "choose from."
    )
    assert invariance(written(risks, SE), test="slopes").outcome == "erm-invariant"


def test_unequal_risks_alone_are_no_reason_for_a_dear_model():
    """They may come from noise: ERM must fail by its slopes. A cheap one may be taken all the same."""
    equal = {"slope": [[0.0, 0.0]] * 2, "slope_se": SE, "constant": 1.0}
    for slope, risk, found in (
        ([0.0, 0.0], 0.55, False),
        (CLEARLY, 0.55, True),
        ([0.0, 0.0], 0.42, True),  # 0.58 of 0.6 are kept
    ):
        records = written([ERM, [risk, risk]], SE, **{**equal, "slope": [slope, [0.0, 0.0]]})
        assert (invariance(records).outcome == "invariant-found") == found


@pytest.mark.parametrize(("share", "taken"), [(0.95, True), (1.05, False)])
def test_a_dear_model_must_pay_within_reach(share, taken):
    """ERM's risks 0.3 and 0.5: by 0.2 apart."""
    worst = 0.5 + share * FURTHEST * 0.2
    records = written([ERM, [worst, worst]], SE, slope=[CLEARLY, [0.0, 0.0]], slope_se=SE, constant=3.0)
    verdict = invariance(records, min_gain=0)
    assert verdict.outcome == ("invariant-found" if taken else "none-found")
    assert verdict.figures["refused"] == (None if taken else "far out")
    assert verdict.message.endswith("pay only very far from these environments.") != taken
    far_off = written([ERM, [worst, worst]], SE, slope=[CLEARLY, [0.0, 0.0]], slope_se=SE, constant=30.0)
    assert invariance(far_off).outcome == "invariant-found"  # of a gain of 29.6 it costs next to nothing


def test_where_the_choice_pays():
    """ERM's risks 0.3 and 0.5: 0.2 apart. The candidate's worst is 0.05 above 0.5, or below it."""
    slope = [CLEARLY, [0.0, 0.0]]
    found = invariance(written([ERM, [0.55, 0.55]], SE, slope=slope))
    assert found.figures["pays_at"] == pytest.approx(0.25)
    assert (
        "Its risk is higher than that of ERM in the worst of them, too: it pays where the next "
        "environment lies further out by more than 0.25 times their spread."
    ) in found.message
    for risk in (0.45, 0.5):
        found = invariance(written([ERM, [risk, risk]], SE, slope=slope))
        assert found.outcome == "invariant-found" and found.figures["pays_at"] <= 0
        assert "pays" not in found.message


def test_equal_risks_do_not_make_slopes_equal():
    records = written([ERM, [0.45, 0.45]], SE, slope=[[-0.1, 0.1], [-0.1, 0.1]], slope_se=SE)
    assert invariance(records, test="risks").outcome == "invariant-found"
    for test in ("slopes", "both", "zero-slopes"):
        assert invariance(records, test=test).outcome == "none-found"


def test_slopes_may_be_equal_without_being_zero():
    """A model that overfits has the same wrong scale everywhere."""
    records = written([ERM, [0.45, 0.45]], SE, slope=[[-0.1, 0.1], [0.2, 0.2]], slope_se=SE)
    for test in ("slopes", "both"):
        assert invariance(records, test=test).outcome == "invariant-found"
    assert invariance(records, test="zero-slopes").outcome == "none-found"


def test_p_values_by_name():
    pooled = written([ERM, [0.45, 0.47]], SE, slope=[[0.1, 0.1], [0.0, 0.05]], slope_se=SE).pooled()
    z = np.array([[0.2, 0.02], [0.0, 0.05]]) / (SE * np.sqrt(2))  # of risks, of slopes
    p_risks, p_slopes = p_of_difference(z)
    np.testing.assert_allclose(p_values(pooled, "risks"), p_risks)
    np.testing.assert_allclose(p_values(pooled, "slopes"), p_slopes)
    assert p_risks[0] < p_slopes[0] and p_slopes[1] < p_risks[1]
    np.testing.assert_allclose(p_values(pooled, "both"), [2 * p_risks[0], 2 * p_slopes[1]])
    alone = stats.norm.ppf(stats.t.cdf([[-5, -5], [0, -2.5]], 99))  # each slope's own test, of 100 rows
    np.testing.assert_allclose(p_values(pooled, "zero-slopes"), stats.chi2.sf((alone**2).sum(1), 2), rtol=1e-6)


def test_both_is_a_probability():
    pooled = written([[0.45, 0.45], [0.45, 0.46]], SE).pooled()
    assert p_values(pooled, "risks")[1] > 0.5
    assert p_values(pooled, "both").tolist() == [1, 1]


def test_both_rejects_as_seldom_as_one_test():
    """Risks and slopes that are independent: the smaller of two p-values alone would reject twice as often."""
    rng = np.random.default_rng(12)
    repeats = 40_000
    noise = [(SE * rng.normal(size=(repeats, 3))).tolist() for _ in range(2)]
    pooled = written(noise[0], SE, slope=noise[1], slope_se=SE).pooled()
    for level in (0.01, 0.05):
        rejected = (p_values(pooled, "both") < level).double().mean()
        assert 0.85 * level < rejected < 1.1 * level


# What it refuses


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"test": "slope"},
            "test must be one of ['both', 'risks', 'slopes', 'columns', 'zero-slopes']. Got 'slope'. Did you mean",
        ),
        ({"test": None}, "test must be one of"),
        ({"level": -0.1}, "level must be a number from 0 to 1. Got -0.1"),
        ({"level": "1%"}, "level must be a number from 0 to 1. Got '1%'"),
        ({"level": True}, "level must be a number from 0 to 1. Got True"),
        ({"level": float("nan")}, "level must be a number from 0 to 1. Got nan"),
        ({"reach": -1}, "reach must be a finite number of at least 0. Got -1"),
        ({"reach": float("inf")}, "reach must be a finite number of at least 0. Got inf"),
        ({"slack": "much"}, "slack must be a finite number of at least 0. Got 'much'"),
        ({"slack": float("nan")}, "slack must be a finite number of at least 0. Got nan"),
        ({"min_gain": 2}, "min_gain must be a number from 0 to 1. Got 2"),
    ],
)
def test_options_that_make_no_sense(options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        invariance(written([ERM], SE), **options)
    with pytest.raises(ValueError, match=re.escape(says)):
        check_options(**options)


def test_options_by_wrong_name():
    with pytest.raises(ValueError, match=r"options of 'invariance' are .* Got 'levle'. Did you mean 'level'"):
        check_options(levle=0.1)
    check_options()
    check_options(test="slopes", level=0, reach=0, slack=3.5, min_gain=1)


def test_defaults_are_what_the_docstring_says():
    check_options(**DEFAULTS)
    records = random_records(0, 3)
    assert invariance(records) == invariance(records, **DEFAULTS)
    text = invariance.__doc__
    assert all(f"{name}" in text for name in DEFAULTS)
    assert f"Default {DEFAULTS['level']}" in text and f"Default {DEFAULTS['min_gain']}" in text
    assert f"Defaults {DEFAULTS['reach']:g} and {DEFAULTS['slack']:g}" in text


def test_without_plain_risk_minimisation():
    for records in (
        written([ERM, [0.45, 0.45]], SE, erm=[]),
        written([[np.nan, np.nan], [0.45, 0.45]], SE),
        written([[0.3, np.nan], [0.45, np.nan]], SE, rows=[100.0, 0.0]),
    ):
        with pytest.raises(ValueError, match=r"needs a candidate of ERM .* train 'erm'"):
            invariance(records)


def test_one_environment_is_nothing_to_compare():
    with pytest.raises(ValueError, match=r"needs at least 2. Got 1; use 'iid'"):
        invariance(written([[0.3]], SE))


def test_soft_and_vector_records_from_single_rows():
    """The whole way: rows with soft environments and two slopes each, four folds."""
    rng = np.random.default_rng(7)
    n = 200
    q = rng.dirichlet([0.3, 0.3], size=n)
    fold = rng.permutation(np.arange(n) % 4)
    noise = 0.3 * rng.normal(size=n)
    loss = np.stack([0.4 + 0.4 * (q[:, 0] - 0.5) + noise, 0.5 + noise])
    slope = 0.3 * rng.normal(size=(2, n, 2))
    slope[0, :, 0] += 0.5 * (q[:, 0] - 0.5)  # ERM's are not equal
    records = counted(loss, slope, q, fold, 4, soft=True)
    verdict = invariance(records)
    assert (verdict.index, verdict.outcome) == (1, "invariant-found")
    wrong = slope.copy()
    wrong[:, :, 1] += 0.5 * (q[:, 0] - 0.5)  # one component is not equal
    assert invariance(counted(loss, wrong, q, fold, 4, soft=True)).outcome == "none-found"


def test_inferred_environments_that_leave_nothing_to_compare_keep_plain_risk_minimisation():
    rows = [[300.0, 3.0], [300.0, 3.0], [300.0, 3.0]]
    records = written([[0.30, 0.5], [0.28, 0.5], [0.2, 0.2]], SE, rows=rows, erm=[0, 1])
    found = invariance(replace(records, inferred=True))
    assert (found.index, found.outcome) == (1, "erm-kept")
    assert "nothing to compare" in found.message
    assert found.figures["pays_at"] is None
    with pytest.raises(ValueError, match="at least 20 rows of each"):  # given ones are the user's to merge
        invariance(records)
