"""Whether environments would choose the same direction, in a search: given ones, and inferred ones."""

from __future__ import annotations

import torch

from irmtv import InvariantClassifierCV
from irmtv.datasets import make_control, make_simulation
from irmtv.models.networks.own_models import own_directions


def searched(task, **given):
    estimator = InvariantClassifierCV(hidden=(), penalty_weights=[100.0], cv=3, l2=0.0, random_state=0)
    data = estimator.read_data(task.train.x.double().numpy(), task.train.y.numpy(), **given)
    return estimator.search(data)


def test_given_environments_in_place_of_models_of_their_own():
    rows = make_simulation(1500, (0.999, 0.7), 0.8, random_state=0).train
    search = searched(make_simulation(1500, (0.999, 0.7), 0.8, random_state=0), environment=rows.environment.numpy())
    records = search.records
    assert records.own is None and records.directions is not None and records.directions.p < 1e-6
    at = search.path_of(search.erm).middle_model
    assert records.directions == own_directions(search.split.task, at.flatten())
    assert search.choice.figures["p_own"] == records.directions.p
    assert search.choice.figures["own_gain"] == records.directions.gain


def test_inferred_environments_on_rows_that_did_not_infer_them():
    task = make_simulation(1500, (0.999, 0.7), 0.8, random_state=0)
    search = searched(task, aux=task.train.aux.numpy())
    batch = search.path_of(search.erm).batch
    assert search.records.directions.p < 1e-6
    codes = batch.with_inferred(0).environment
    for f in range(3):
        run = batch.runs_of(f, 0)[0]
        here = search.fold == f
        own = batch.membership[run].argmax(1)[here]
        # the same stretches of time, maybe in another order
        assert len({(int(a), int(b)) for a, b in zip(codes[here], own, strict=True)}) == len(torch.unique(own)) == 2
    control = make_control(1500, "label-noise", random_state=0)
    kept = searched(control, aux=control.train.aux.numpy())
    assert kept.records.directions.p > 0.03 and kept.choice.outcome == "erm-kept"
    assert "each of them would choose the same model, but for its scale" in kept.choice.message
