"""The paper's running times beside measured ones: numbers by hand, files as programs read them."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from irmtv.lab.experiments.running_times import METHODS, RunningTimes, Timing
from irmtv.lab.tables.running_times import report_running_times

ZIN, MINIMAX, L2, L1 = METHODS


@pytest.fixture
def made():
    simulation = Timing(
        "simulation",
        False,
        (300, 60),
        {ZIN: (10.0, 20.0, 10.0), MINIMAX: (11.0, 20.0, 9.0), L2: (4.0, 4.0, 4.0), L1: (4.0, 6.0, 5.0)},
        dict.fromkeys(METHODS, (1.0, 0.01234, 1.0)),
    )
    landcover = Timing("landcover", True, (15, 5), {ZIN: (200.0,), MINIMAX: (1234.5,)}, {ZIN: (1.0,), MINIMAX: (1.0,)})
    return report_running_times(RunningTimes((simulation, landcover), "a machine", 3, 10, {"torch": "9.9"}))


def test_the_papers_seconds(made):
    assert made.paper(ZIN, "simulation") == 13.5424
    assert made.paper(L1, "adult") == 11.7834
    assert made.paper(L2, "landcover") is None


def test_seconds_are_medians(made):
    seconds, _ = made.tables()
    assert seconds.columns == ("data", "method", "paper", "one run alone", "per run of ten")
    rows = {(row[0], row[1]): row[2:] for row in seconds.rows}
    assert rows["simulation", ZIN] == ["13.5", "10", "1"]
    assert rows["landcover (stand-in)", ZIN] == ["68.1", "200", "1"]
    assert rows["landcover (stand-in)", MINIMAX] == ["68.4", "1,234", "1"]
    assert rows["simulation", L1] == ["8.4", "5", "1"]
    assert rows["landcover (stand-in)", L1] == ["–", "–", "–"]
    notes = " ".join(seconds.notes)
    assert "a machine" in notes and "stand-in: random numbers" in notes and "scaled to 5,300" in notes
    assert "simulation 300 and 60; landcover 15 and 5" in notes


def test_ratios_are_of_measurements_that_followed_each_other(made):
    _, ratios = made.tables()
    assert [row[:4] for row in ratios.rows] == [
        ["simulation", MINIMAX, "0.948", "1.00 (0.90–1.10)"],  # 1.1, 1, 0.9
        ["landcover (stand-in)", MINIMAX, "1.004", "6.17 (6.17–6.17)"],
        ["simulation", L1, "0.939", "1.25 (1.00–1.50)"],  # 1, 1.5, 1.25
    ]


def test_files(made, tmp_path):
    written = made.write(tmp_path / "deep")
    assert [p.name for p in written] == ["running-times.md", "running-times.csv", "running-times.json"]
    assert "| simulation | ZIN (authors) | 13.5 | 10 | 1 |" in written[0].read_text()
    table = pd.read_csv(written[1])
    assert len(table) == 2 * 12 + 2 * 2 and set(table["runs"]) == {1, 10}
    numbers = json.loads(written[2].read_text())
    assert numbers["columns"]["landcover"]["paper"][L1] is None
    assert numbers["ratios"][0]["alone"] == {"median": 1.0, "low": 0.9, "high": 1.1}
    assert numbers["ratios"][-1] == {"l1": L1, "l2": L2, "column": "landcover", "paper": None, "alone": None,
                                     "together": None}  # fmt: skip
