"""Objectives by name: lookup, sums, plug-ins, hyper-parameters and what is refused."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from irmtv.core.types import Statistics
from irmtv.objectives import BUILT_IN, OBJECTIVES, Objective, Registry, UnknownObjectiveError
from irmtv.objectives.parameters import check_above_zero, check_whole

NAMES = [o.name for o in BUILT_IN]
PENALISED = [o.name for o in BUILT_IN if o.penalties]
SUMS = ["irm-tv-l1+vrex", "irmv1+mm-rex", "minimax-tv-l1+zin", "vrex+mm-rex", "irm-tv-l1+irm-tv-l2+vrex"]


# --- lookup -----------------------------------------------------------------------------------------------


def test_the_registry_is_a_mapping():
    assert list(OBJECTIVES)[: len(NAMES)] == NAMES
    assert len(OBJECTIVES) >= len(NAMES)
    assert "irm-tv-l1" in OBJECTIVES
    assert "irm-tv-l1+vrex" in OBJECTIVES
    assert "nothing of the kind" not in OBJECTIVES
    assert None not in OBJECTIVES
    assert OBJECTIVES.get("nothing of the kind") is None
    assert all(OBJECTIVES[name].name == name for name in OBJECTIVES)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "irm-tv-11",
            r"objective must be one of \['eiil', 'eills', 'erm', .*Got 'irm-tv-11'\. Did you mean 'irm-tv-l1'\?",
        ),
        ("IRM-TV-L1", r"Did you mean 'irm-tv-l1'\?"),
        ("v-rex", r"Did you mean 'vrex'\?"),
        ("irm-tv-l1+vrx", r"Got 'vrx'\. Did you mean 'vrex'\?"),
        ("irm-tv-l1+", r"or a sum such as 'irm-tv-l1\+vrex'\. Got ''"),
        ("banana", r"Got 'banana'\.$"),
        (7, r"must be a name or an Objective\. Got int"),
        (None, r"must be a name or an Objective\. Got NoneType"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(UnknownObjectiveError, match=message) as caught:
        OBJECTIVES[name]
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, ValueError)
    assert not str(caught.value).startswith(("'", '"')), "a KeyError's message would be quoted"


def test_objectives_are_frozen():
    with pytest.raises(FrozenInstanceError):
        OBJECTIVES["erm"].name = "mine"


# --- sums -------------------------------------------------------------------------------------------------


def some_statistics(n_environments=3):
    rng = np.random.default_rng(0)
    mass = torch.tensor(rng.dirichlet(np.ones(n_environments), size=2))
    risk, slope = torch.tensor(rng.random((2, 2, n_environments)))
    return Statistics((mass * risk).sum(1), mass, risk, slope)


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_has_the_penalties_of_its_parts(name):
    """Each with its own measure and reduction; the risk term is the first one's."""
    total, parts = OBJECTIVES[name], [OBJECTIVES[p] for p in name.split("+")]
    e = some_statistics()
    mine = total.penalty_values(e, total.resolve({}))
    own = [part.penalty_values(e, part.resolve({}))[0] for part in parts]
    assert all((a == b).all() for a, b in zip(mine, own, strict=True))
    assert (total.risk(e, total.resolve({})) == parts[0].risk(e, parts[0].resolve({}))).all()
    assert total.name == name
    assert [p.name for p in total.penalties] == [p.name for p in parts]
    assert total.needs == ("aux" if any(p.needs == "aux" for p in parts) else "environment")
    assert total.year == max(p.year for p in parts)
    known = {h.name for h in total.hyperparameters}
    assert known == set().union(*({h.name for h in p.hyperparameters} for p in parts))


def test_spaces_around_the_plus():
    assert OBJECTIVES["irm-tv-l1 + vrex"].name == "irm-tv-l1+vrex"


def test_measure_and_reduction_can_be_overridden_for_all_parts():
    total = OBJECTIVES["irm-tv-l2+mm-rex"]
    e = some_statistics()

    def values(**given):
        return [v.tolist() for v in total.penalty_values(e, total.resolve(given))]

    def alone(name, **given):
        return OBJECTIVES[name].penalty_values(e, given)[0].tolist()

    assert values() == [alone("irm-tv-l2", measure="empirical"), alone("mm-rex", measure="uniform")]
    assert values(measure="uniform") == [alone("irm-tv-l2", measure="uniform"), alone("mm-rex", measure="uniform")]
    weights = (1.0, 0.0, 2.0)
    assert values(measure=weights) == [alone("irm-tv-l2", measure=weights), alone("mm-rex", measure=weights)]
    # mm-rex has no slopes: the reduction leaves it and its own measure alone
    assert values(reduction="authors") == [alone("irm-tv-l2", reduction="authors"), alone("mm-rex", measure="uniform")]
    # None is "each its own", here and in what `resolve` gives back
    assert values(measure=None, reduction=None) == values()
    assert total.resolve({})["measure"] is None
    uniform = total.risk(e, total.resolve({"measure": "uniform"}))
    torch.testing.assert_close(uniform, e.risk.mean(1))


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (5.0, [5.0, 5.0]),
        (0, [0.0, 0.0]),
        ({"irm-tv-l1": 2.0, "mm-rex": 3.0}, [2.0, 3.0]),
        ({"mm-rex": 3.0}, [1e3, 3.0]),  # the other keeps its default
        ({}, [1e3, 10.0]),
        (None, [1e3, 10.0]),
    ],
)
def test_weights_of_a_sum(weight, expected):
    total = OBJECTIVES["irm-tv-l1+mm-rex"]
    assert total.weights(weight) == expected
    if weight is not None:
        assert total.resolve({"penalty_weight": weight})["penalty_weight"] == weight
    assert total.weights(total.resolve({})["penalty_weight"]) == [1e3, 10.0]


@pytest.mark.parametrize("name", ["vrex+vrex", "irm-tv-l1+vrex+irm-tv-l1", "erm+vrex", "vrex+erm", "erm+erm"])
def test_sums_that_add_nothing(name):
    with pytest.raises(ValueError, match=r"must name different penalties.*'erm' has none"):
        OBJECTIVES[name]


# --- plug-ins ---------------------------------------------------------------------------------------------

PLUGIN = """
from irmtv.objectives import HyperParameter, Penalty, penalised

MINE = penalised(
    "mine",
    Penalty("mine", lambda e, mu: (mu * e.slope).sum(-1), default_weight=7.0),
    formula="sum_e mu_e S_e",
    summary="for the test",
    source="nobody",
    year=2020,
)
NOT_ONE = "a string"
TAKEN = penalised("vrex", Penalty("vrex", lambda e, mu: e.mean_risk), formula="", summary="", source="", year=2020)
TWICE = penalised("mine", Penalty("mine", lambda e, mu: e.mean_risk), formula="", summary="", source="", year=2020)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with entry points on the path, as pip would leave it, and forget it afterwards."""

    def put(*points, body=PLUGIN):
        (tmp_path / "irmtv_test_plugin.py").write_text(body)
        info = tmp_path / "irmtv_test_plugin-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: irmtv-test-plugin\nVersion: 1.0\n")
        lines = "".join(f"{name} = {target}\n" for name, target in points)
        (info / "entry_points.txt").write_text(f"[irmtv.objectives]\n{lines}")
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()

    yield put
    sys.modules.pop("irmtv_test_plugin", None)


def test_a_plug_in_is_found(install):
    install(("mine", "irmtv_test_plugin:MINE"))
    registry = Registry(BUILT_IN)
    assert isinstance(registry["mine"], Objective)
    assert list(registry) == [*NAMES, "mine"]
    assert len(registry) == len(NAMES) + 1
    e = some_statistics()
    torch.testing.assert_close(registry["mine"].penalty_values(e, {})[0], (e.mass * e.slope).sum(1))
    assert registry["mine+vrex"].weights(None) == [7.0, 1e3]
    with pytest.raises(UnknownObjectiveError, match="Did you mean 'mine'"):
        registry["mime"]


def test_a_plug_in_is_not_imported_before_it_is_needed(install):
    install(("mine", "irmtv_test_plugin:MINE"))
    Registry(BUILT_IN)
    assert "irmtv_test_plugin" not in sys.modules


@pytest.mark.parametrize(
    ("points", "error", "message"),
    [
        (
            [("bad", "irmtv_test_plugin:NOT_ONE")],
            TypeError,
            r"'bad' \(irmtv_test_plugin:NOT_ONE\) in group 'irmtv.objectives' must be an .*Objective\. Got str",
        ),
        ([("bad", "irmtv_test_plugin:TAKEN")], ValueError, "'bad'.*names its objective 'vrex', which is taken"),
        (
            [("good", "irmtv_test_plugin:MINE"), ("bad", "irmtv_test_plugin:TWICE")],
            ValueError,
            "names its objective 'mine', which is taken",
        ),
        ([("bad", "irmtv_test_plugin:ABSENT")], ImportError, "'bad' .*cannot be loaded: .*has no attribute 'ABSENT'"),
        ([("bad", "irmtv_no_module:MINE")], ImportError, "'bad' .*No module named 'irmtv_no_module'.*uninstall"),
    ],
)
def test_a_broken_plug_in_is_named_at_every_use(install, points, error, message):
    install(*points)
    registry = Registry(BUILT_IN)
    for _ in range(2):
        with pytest.raises(error, match=message):
            registry["erm"]
    with pytest.raises(error, match=message):
        list(registry)


# --- hyper-parameters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, *SUMS])
def test_every_hyperparameter_says_what_it_is(name):
    objective = OBJECTIVES[name]
    names = [h.name for h in objective.hyperparameters]
    assert len(set(names)) == len(names)
    for h in objective.hyperparameters:
        assert len(h.meaning) > 10
        assert h.check(h.default) is None, f"{h.name}: its default {h.default!r} fails its own check"
        assert h.search, f"{h.name} has no search range"
        if h.search[0] in ("log", "linear"):
            kind, low, high = h.search
            assert low < high
            assert low > 0 or kind == "linear"
            tried = [low, high]
        else:
            tried = h.search
            assert len(set(tried)) == len(tried) >= 2
            assert h.default in tried or h.default is None
        for value in tried:
            assert h.check(value) is None, f"{h.name}: {value!r} of its search range fails its check"
    assert objective.resolve({}) == {h.name: h.default for h in objective.hyperparameters}


@pytest.mark.parametrize("name", NAMES)
def test_every_objective_says_what_it_is(name):
    objective = OBJECTIVES[name]
    assert objective.formula
    assert objective.summary
    assert objective.source
    assert 1990 <= objective.year <= 2030
    assert objective.needs in ("nothing", "environment", "aux")
    assert [p.name for p in objective.penalties] == (
        [] if name in ("erm", "groupdro", "lff", "hrm", "eills") else [name]
    )
    assert all(why for why in objective.not_applicable.values())


def test_what_is_given_goes_before_the_default():
    settings = OBJECTIVES["irm-tv-l1"].resolve({"penalty_weight": 5, "warmup": 100, "normalise": False})
    assert (settings["penalty_weight"], settings["warmup"], settings["normalise"]) == (5, 100, False)
    assert settings["measure"] == "empirical"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "irm-tv-l1",
            {"penalty_wieght": 1.0},
            r"'penalty_wieght' is not a hyper-parameter of 'irm-tv-l1'.*Did you mean 'penalty_weight'\?",
        ),
        ("vrex", {"banana": 1.0}, r"it has \['expand', .*'warmup', 'weight_learning_rate'\]\.$"),
        ("erm", {"penalty_weight": 1.0}, r"it has \['measure', 'measure_"),
        ("vrex", {"reduction": "authors"}, "'reduction' is not a hyper-parameter of 'vrex'"),
        ("irm-tv-l1", {"n_environments": 3}, "'n_environments' is not a hyper-parameter"),
        *[
            ("vrex", {"penalty_weight": bad}, r"penalty_weight of 'vrex' must be a finite number of at least 0.*Got")
            for bad in (-1.0, -1e-300, math.nan, math.inf, -math.inf, True, False, "1", None, [1.0], (1.0,))
        ],
        (
            "irm-tv-l1+vrex",
            {"penalty_weight": {"vrexx": 1.0}},
            r"a mapping over \['irm-tv-l1', 'vrex'\] \(Did you mean 'vrex'\?\)\. Got {'vrexx': 1.0}",
        ),
        ("irm-tv-l1+vrex", {"penalty_weight": {7: 1.0}}, r"a mapping over \['irm-tv-l1', 'vrex'\]\. Got {7: 1.0}"),
        ("irm-tv-l1+vrex", {"penalty_weight": {"vrex": -1.0}}, "finite numbers of at least 0"),
        ("irm-tv-l1+vrex", {"penalty_weight": {"vrex": math.nan}}, "finite numbers of at least 0"),
        *[
            ("vrex", {"warmup": bad}, r"a whole number of steps, or a share of all steps in \[0, 1\)")
            for bad in (-1, -0.5, 1.0, 1.5, math.nan, True, "half")
        ],
        *[
            (
                "vrex",
                {"measure": bad},
                r"'empirical', 'uniform', 'learned', or a tuple with one weight >= 0 per environment",
            )
            for bad in ("unifrom", (), (0.0, 0.0), (1.0, -1.0), (1.0, math.nan), (math.inf, 1.0), [0.5, 0.5], 1.0, None)
        ],
        ("vrex", {"normalise": "yes"}, r"one of \[True, False\]\. Got 'yes'"),
        ("irm-tv-l1", {"reduction": "author"}, r"one of \['expectation', 'authors'\]"),
        ("irm-tv-l1", {"batch_estimator": "half"}, r"one of \['auto', 'plain', 'halves'\]"),
        ("zin", {"schedule": "anealed"}, r"one of \['annealed', 'alternating'\]"),
        ("zin", {"n_environments": 1}, "a whole number of at least 2"),
        ("zin", {"environment_hidden": 2.5}, "a whole number of at least 2"),
        ("zin", {"environment_learning_rate": 0.0}, "a finite number above 0"),
        ("zin", {"aux_scaling": "row"}, r"one of \['column', 'authors'\]"),
    ],
)
def test_what_is_refused(name, given, message):
    with pytest.raises(ValueError, match=message):
        OBJECTIVES[name].resolve(given)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("irm-tv-l1", {"reduction": "authors", "measure": "uniform"}),
        ("irm-tv-l2", {"reduction": "authors", "measure": (0.5, 0.5)}),
        ("zin", {"measure": "uniform"}),  # its own reduction is the authors'
        ("irmv1", {"reduction": "authors"}),  # its own measure is uniform
        ("irm-tv-l1+vrex", {"reduction": "authors", "measure": "uniform"}),
        ("minimax-tv-l1+zin", {"measure": "uniform"}),
        ("zin+minimax-tv-l1", {"measure": "uniform"}),
        ("irm-tv-l1+irmv1", {"reduction": "authors"}),
        ("irmv1+irm-tv-l1", {"reduction": "authors"}),
    ],
)
def test_the_authors_reduction_fixes_the_measure(name, given):
    """Whichever part of a sum it concerns, and in whichever order."""
    with pytest.raises(
        ValueError, match=r"reduction='authors' weighs slopes .* measure='empirical' only\. Got measure="
    ):
        OBJECTIVES[name].resolve(given)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("irm-tv-l1", {"reduction": "authors"}),
        ("irm-tv-l1", {"reduction": "authors", "measure": "empirical"}),
        ("zin", {"measure": "uniform", "reduction": "expectation"}),
        ("irm-tv-l1+mm-rex", {"reduction": "authors"}),
        ("mm-rex+irm-tv-l1", {"reduction": "authors"}),
        ("irm-tv-l1", {"penalty_weight": {"irm-tv-l1": 3.0}}),
        ("irm-tv-l1", {"penalty_weight": 0}),
        ("irm-tv-l1", {"penalty_weight": 1e300}),
        ("vrex", {"warmup": 0}),
        ("vrex", {"warmup": 0.0}),
        ("vrex", {"warmup": 10**6}),
        ("vrex", {"measure": (1, 0, 3.5)}),
    ],
)
def test_what_is_accepted(name, given):
    assert OBJECTIVES[name].resolve(given).items() >= given.items()


@pytest.mark.parametrize(
    ("value", "good"), [(2, True), (64, True), (1, False), (True, False), (2.0, False), ("2", False)]
)
def test_counts(value, good):
    assert (check_whole(2)(value) is None) is good


@pytest.mark.parametrize(("value", "good"), [(1e-9, True), (3, True), (0, False), (math.inf, False), (math.nan, False)])
def test_positive_numbers(value, good):
    assert (check_above_zero(value) is None) is good


@pytest.mark.parametrize(
    ("name", "given", "until"),
    [
        ("erm", {}, 100),
        ("erm", {"measure": "learned"}, 0),
        ("groupdro", {}, 0),
        ("lff", {}, 0),
        ("hrm", {}, 0),
        ("hrm", {"penalty_weight": 0.0}, 0),  # it selects features all the same
        ("eills", {}, 0),
        ("eills", {"penalty_weight": 0.0}, 100),
        ("irm-tv-l1", {"warmup": 30}, 30),
        ("irm-tv-l1", {"warmup": 30, "penalty_weight": 0.0}, 100),
        ("irm-tv-l1", {"warmup": 30, "penalty_weight": "adaptive"}, 30),
        ("irm-tv-l1", {"warmup": 30, "measure": "learned"}, 0),
        ("irmv1", {"warmup": 30}, 0),  # its penalty has weight 1 in the warm-up
        ("irmv1", {"warmup": 30, "penalty_weight": 0.0}, 100),
        ("eiil", {"warmup": 0.4}, 40),
        ("ood-tv-irm-l1", {"warmup": 30, "penalty_weight": 0.0}, 100),
        ("sparse-irm", {"warmup": 10}, 10),
        ("sparse-irm", {"warmup": 90}, 28),  # from there on weights are dropped
        ("sparse-irm", {"warmup": 10, "penalty_weight": 0.0}, 28),
        ("tiva", {"warmup": 30}, 30),
        ("tiva", {"warmup": 30, "gated": True}, 0),
        ("irm-tv-l1+vrex", {"warmup": 30, "penalty_weight": {"irm-tv-l1": 0.0, "vrex": 0.0}}, 100),
    ],
)
def test_how_long_training_is_plain_risk_minimisation(name, given, until):
    objective = OBJECTIVES[name]
    assert objective.plain_until({**objective.resolve(given), "steps": 100}) == until


def test_a_part_that_is_not_named_keeps_its_weight():
    """So a table that names one weight of 0 is not ERM."""
    total = OBJECTIVES["irm-tv-l1+vrex"]
    settings = {**total.resolve({"penalty_weight": {"irm-tv-l1": 0.0}, "warmup": 10}), "steps": 100}
    assert total.weights(settings["penalty_weight"]) == [0.0, 1000.0]
    assert total.plain_until(settings) == 10


def test_what_a_choice_of_penalty_rules_out_is_said_when_settings_are_resolved():
    sparse = OBJECTIVES["sparse-irm"]
    with pytest.raises(ValueError, match="sparsify_until must be at least sparsify_from"):
        sparse.resolve({"sparsify_from": 0.5, "sparsify_until": 0.2})
    with pytest.raises(ValueError, match="goes with measure='empirical' only"):
        sparse.resolve({"reduction": "authors", "measure": "uniform"})
    sparse.resolve({"penalty": "vrex", "reduction": "authors", "measure": "uniform"})  # it uses no slopes


def test_a_weight_that_follows_phi_has_no_schedule():
    with pytest.raises(ValueError, match="penalty_schedule lets a number rise"):
        OBJECTIVES["vrex"].resolve({"penalty_weight": "adaptive", "penalty_schedule": "linear"})
