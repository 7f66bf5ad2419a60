"""Feature weights beside the paper's: tables by hand, the figure by its bars, files as programs read them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import BarContainer

from irmtv.lab.experiments import Spec, load_spec, run_experiment
from irmtv.lab.experiments.feature_weights import KEPT
from irmtv.lab.experiments.papers import paper_spec
from irmtv.lab.tables.identifiability import Identifiability, report_identifiability
from lab.experiments.small import ERM, TV, small

L1, L2, ZIN = "IRM-TV-l1", "IRM-TV-l2 (authors)", "ZIN (authors)"


def row(method, rule, repetition, weights, outcome="stated", worst=0.5):
    settings = {"penalty_weight": 1e4} if weights is not None else None
    values = ["s", method, None, rule, repetition, method, settings, 5300, outcome, "", None]
    return {**dict(zip(KEPT, values, strict=True)), "worst": worst, "weights": weights}


def spread(invariant, spurious):
    """Weights with so much on the invariant columns and so much on the others, both signs among these."""
    return np.r_[np.full(5, invariant / 5), np.full(10, spurious / 10) * np.tile([1, -1], 5)]


@pytest.fixture
def spec() -> Spec:
    return load_spec(paper_spec("identifiability"))


@pytest.fixture
def made(spec) -> Identifiability:
    arguments = {"n_invariant": 5, "n_spurious": 10, "p_s": (0.999, 0.9), "p_v": 0.8, "generator": "code"}
    rows = [
        row(L2, "fixed", 0, spread(6, 4), worst=0.6),
        row(L2, "fixed", 1, spread(5, 5), worst=0.7),
        row(L1, "fixed", 1, spread(6, 4)),  # not in order
        row(L1, "fixed", 0, spread(14, 6)),  # the scale does not matter
        row(ZIN, "fixed", 0, spread(1, 1)),
        row(ZIN, "fixed", 1, None),  # the rule could not choose
        row(L2, "invariance", 0, spread(1, 3), "none-found"),
        row(L2, "invariance", 1, spread(3, 1), "invariant-found"),
        row(L1, "invariance", 0, spread(3, 1), "invariant-found"),
        row(L1, "invariance", 1, spread(3, 1), "invariant-found"),
    ]
    arguments["test_p_s"] = (0.999, 0.8, 0.2, 0.001)
    return Identifiability(spec, "s", arguments, pd.DataFrame(rows))


def test_the_papers_percentages_are_sums_of_its_table(made):
    """As the paper's text has them, from the numbers of its table."""
    weights = made.spec.published.results
    assert {key: round(100 * sum(w[:5]), 2) for key, w in weights.items()} == {
        "irm-tv-l2": 58.88,
        "irm-tv-l1": 64.88,
        "minimax-tv-l2": 55.90,
        "minimax-tv-l1": 65.08,
    }
    assert made.published_share(L1) == pytest.approx(0.6488)
    assert made.published_share(ZIN) == pytest.approx(0.5590)
    assert made.published("ERM") is None


def test_shares_by_hand(made):
    shares, chosen, differences, weights = made.tables()
    by_method = {r[0]: r[1:] for r in shares.rows}
    assert list(by_method) == [L2, L1, ZIN, "ERM, population", "invariant, population"]
    # paper, mean and sd of 60 and 50 %, averaged first, net share, worst accuracy
    assert by_method[L2] == ["58.88", "55.0 ± 7.1", "55.0", "100.0 ± 0.0", "65.0 ± 7.1"]
    assert chosen.rows[0] == [L2, "50.0 ± 35.4", "100.0 ± 0.0", "50.0 ± 0.0", "none 1, found 1"]
    assert by_method[L1][:3] == ["64.88", "65.0 ± 7.1", "66.7"]  # (14 + 6) / (20 + 10): averaged before normalised
    assert by_method[ZIN][:2] == ["55.90", "50.0"]  # of the one that there is
    assert by_method["ERM, population"][1:5] == ["27.4", "–", "27.4", "3.4"]
    assert by_method["invariant, population"][1:5] == ["100.0", "–", "100.0", "79.2"]
    assert [r[:5] for r in differences.rows] == [
        [f"{L1} - {L2}", "fixed", "+6.00", "10.0 ± 0.0", "2 of 2"],
        [f"{L1} - {L2}", "invariance", "+6.00", "25.0 ± 35.4", "1 of 2"],
    ]
    assert weights.wide and weights.columns[-1] == "w15"
    ours = {r[0]: r[1:] for r in weights.rows}
    assert ours[L1] == ["0.1300"] * 5 + ["0.0350"] * 10
    assert ours[f"{L2}, paper"][:2] == ["0.1091", "0.1143"]


def test_differences_are_paired_by_repetition(made):
    (found,) = made.differences("fixed")
    np.testing.assert_allclose(found.values, [10, 10])
    assert found.p == 0.5  # the smallest that two pairs can have
    assert found.published == pytest.approx(6.0)


def test_bars_and_markers_are_where_the_numbers_are(made):
    given, inferred = made.figure().axes
    groups = [c for c in given.containers if isinstance(c, BarContainer)]
    bars = [[bar.get_height() for bar in group] for group in groups]
    np.testing.assert_allclose(bars, [[0.11] * 5 + [0.045] * 10, [0.13] * 5 + [0.035] * 10])
    markers = [line.get_ydata() for line in given.lines if line.get_marker() == "D" and len(line.get_ydata())]
    np.testing.assert_allclose(markers, [made.published(L2), made.published(L1)])
    places = [bar.get_x() + bar.get_width() / 2 for bar in groups[0]]
    assert np.diff(places).argmax() == 4  # a gap between invariant and spurious features
    assert [t.get_text() for t in given.texts] == ["invariant", "spurious"]
    assert inferred.get_title("left").startswith("environments inferred")


def test_files(made, tmp_path):
    written = made.write(tmp_path / "deep")
    assert [p.name for p in written] == [f"identifiability.{end}" for end in ("md", "csv", "json", "svg", "png")]
    text = written[0].read_text()
    assert "| IRM-TV-l1 | 64.88 | 65.0 ± 7.1 |" in text and "](identifiability.svg)" in text
    table = pd.read_csv(written[1])
    assert len(table) == 10 and table["share"].notna().sum() == 9
    np.testing.assert_allclose(table.filter(regex=r"^w\d+$").sum(axis=1)[table["share"].notna()], 1)
    numbers = json.loads(written[2].read_text())
    assert numbers["methods"][L1]["fixed"]["share"]["mean"] == pytest.approx(0.65)
    assert numbers["methods"][ZIN]["fixed"]["share"]["repetitions"] == [pytest.approx(0.5), None]
    assert numbers["paper"][L1]["share"] == pytest.approx(0.6488)
    assert written[3].read_text().startswith("<svg") and written[4].read_bytes().startswith(b"\x89PNG")


def test_from_a_folder(tmp_path):
    tv = {**TV, "fixed": {"penalty_weight": 100.0}}
    spec = small(ERM, tv, rules=["fixed"], repetitions=1)
    assert report_identifiability(spec.with_(methods=["erm"]), trained(spec, tmp_path / "x")) is not None
    made = report_identifiability(spec, tmp_path / "x")
    assert made is not None
    _, differences, _ = made.tables()  # no rule "invariance", no table of it
    assert differences.rows == [] and len(made.figure().axes) == 1  # nothing to compare l1 with
    assert [p.suffix for p in made.write(tmp_path / "out")] == [".md", ".csv", ".json", ".svg", ".png"]


def trained(spec, folder):
    run_experiment(spec, folder)
    return folder


def test_one_setting_at_a_time(tmp_path):
    spec = small(ERM, rules=["fixed"], settings={"a": {"p_v": 0.9}, "b": {"p_v": 0.8}})
    with pytest.raises(ValueError, match=r"shown for one setting\. Spec 'small' has \['a', 'b'\]"):
        report_identifiability(spec, tmp_path)
