"""A network by name in a spec: trained, keyed, measured; and what goes wrong with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from irmtv import Runs, make_task, train
from irmtv.datasets import DATASETS, DataSet
from irmtv.engine.named_networks import make_network
from irmtv.lab.experiments import SpecError, Store, read_results, run_experiment
from irmtv.lab.experiments import plan as plan_module
from lab.experiments.small import ERM, TV, small

SERIES = {"steps": 20, "snapshot_every": 10, "learning_rate": 0.01, "network": "series-cnn"}


def series(random_state: Any = None, n_samples: int = 60, n_test: int = 30) -> Any:
    """Three classes of series with two channels of eight times, in two places."""
    rng = np.random.default_rng(random_state)
    y = np.arange(n_samples + n_test) % 3
    x = rng.normal(size=(len(y), 2, 8)) + y[:, None, None]
    where = np.arange(len(y)) % 2
    aux = rng.random(len(y))
    given = {"x": x, "y": y, "environment": where, "aux": aux}
    old, new = ({k: v[part] for k, v in given.items()} for part in (slice(n_samples), slice(n_samples, None)))
    return make_task(**old, test=new)


@pytest.fixture
def spec(monkeypatch):
    monkeypatch.setitem(plan_module.INFERENCE, "steps", 30)
    known = {**DATASETS, "series": DataSet(series)}
    for module in ("plan", "run", "spec_file"):
        monkeypatch.setattr(f"irmtv.lab.experiments.{module}.DATASETS", known)

    def make(*methods, **more):
        arguments = {"n_samples": 60, "n_test": 30}
        return small(*methods, data="series", arguments=arguments, **{"training": SERIES, **more})

    return make


def test_a_spec_trains_the_network_that_it_names(spec, tmp_path):
    table = {**ERM, "label": "table", "network": "mlp", "hidden": [4]}
    inferred = {**ERM, "label": "inferred", "environments": "inferred"}
    asked = spec(ERM, TV, table, inferred, rules=["invariance"])
    report = run_experiment(asked, tmp_path / "x")
    assert (report.trained, report.failed) == ((1 + 2 + 1 + 1) * 3, ())
    with Store.read(tmp_path / "x") as store:
        run = next(r for r in store.runs() if r.part == "all" and r.method == "erm")
    task = series(0)
    how = {"steps": 20, "learning_rate": 0.01, "snapshot_every": 10, "keep_states": True}
    fitted = train(task, "erm", Runs(seed=0), net=make_network("series-cnn", (2, 8), 3), **how)
    expected = [fitted.at(step).evaluate().by_environment[0] for step in (0, 10, 20)]
    np.testing.assert_allclose(run.arrays["test/accuracy"], expected)
    frame = read_results(asked, tmp_path / "x")
    assert set(frame["method"]) == {"erm", "irm-tv-l1", "table", "inferred"}
    assert frame.loc[frame["method"] != "inferred", "value"].notna().all()  # whose environments may be too small


def test_another_network_is_another_run(spec, tmp_path):
    run_experiment(spec(ERM), tmp_path / "x")
    other = spec(ERM, training={**SERIES, "network": "landcover-cnn"})
    assert run_experiment(other, tmp_path / "x").found == 0
    table = {name: value for name, value in SERIES.items() if name != "network"}
    assert run_experiment(spec(ERM, training=table), tmp_path / "x").found == 0
    same = spec({**ERM, "network": "mlp"}, training=SERIES)
    assert run_experiment(same, tmp_path / "x").trained == 0  # said otherwise
    assert run_experiment(spec(ERM), tmp_path / "x").trained == 0


@pytest.mark.parametrize(
    ("method", "training", "says"),
    [
        ({}, {"network": "cnn"}, r"training.network must be one of 'landcover-cnn', 'series-cnn'. Got 'cnn'."),
        ({"network": "serie-cnn"}, {}, "methods.0..network must be one of .* Did you mean 'series-cnn'"),
        ({}, {"hidden": [4]}, r"methods.0..hidden must be \[\] where network is 'series-cnn'.*network = \"mlp\""),
        ({"hidden": [[], [8]]}, {}, r"methods.0..hidden must be \[\] where network .* Got \[\[\], \[8\]\]"),
    ],
)
def test_names_that_do_not_fit(spec, method, training, says):
    with pytest.raises(SpecError, match=says):
        spec({**ERM, **method}, training={**SERIES, **training})


def test_a_table_is_no_series(tmp_path):
    with pytest.raises(ValueError, match="method 'erm': network 'series-cnn' reads series"):
        run_experiment(small(ERM, training=SERIES), tmp_path / "x")
