"""The example of inferred environments runs, and its small tables say what its text says."""

from __future__ import annotations

import runpy

from paths import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "inferred_environments.py"


def test_the_example_runs(capsys):
    results = runpy.run_path(str(EXAMPLE))["main"](n_samples=400)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 4 * 8 and len({len(row) for row in lines if row.startswith("  clusters")}) == 1
    for block in results.values():
        assert list(block)[2:] == ["minimax on time", "eiil", "clusters of time", "clusters of features"]
        assert list(block["eiil"]) == ["found", "training", "held-out", "logistic", "boosted", "invariant"]
        assert block["clusters of time"]["found"] > 0.9 and block["eiil"]["held-out"] > 20
    simulated, _, control, noisier = results.values()
    # segments of time are a matter for invariance, not for weights; where nothing differs there is nothing to find
    assert simulated["clusters of time"]["invariant"] > simulated["clusters of time"]["logistic"] + 20
    assert control["clusters of time"]["held-out"] < 5 < noisier["clusters of time"]["held-out"]
