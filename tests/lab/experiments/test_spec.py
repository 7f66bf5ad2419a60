"""Specs: what a good one gives, and what is said about every kind of bad one."""

from __future__ import annotations

import inspect
import json
import math
import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import irmtv
import irmtv.datasets
from irmtv.lab.experiments import spec_file
from irmtv.lab.experiments.spec import Method, Selection, Spec, SpecError, Training, without_new_defaults
from irmtv.lab.experiments.spec_file import load_spec, parse_spec

MINIMAL = """
name = "minimal"
data.name = "simulation"
[[methods]]
objective = "erm"
"""

FULL = """
name = "simulation"                 # a comment
description = "every feature"
repetitions = 3
first_seed = 5
device = "auto"

[data]
name = "simulation"
[data.arguments]
n_samples = 500
p_v = 0.7
[data.settings."ps=(0.999,0.7),pv=0.9"]
p_s = [0.999, 0.7]
p_v = 0.9
[data.settings.plain]

[training]
steps = 200
learning_rate = 1e-2
hidden = [8]
dtype = "float64"
snapshot_every = 20

[[methods]]
objective = "erm"
label = "ERM"
published = "erm"

[[methods]]
objective = "irm-tv-l1"
label = "IRM-TV-l1"
published = "irm-tv-l1"
penalty_weight = [1, 100, 1e4]
hidden = [[], [32]]
steps = 300
fixed = { penalty_weight = 10000, hidden = [32] }

[[methods]]
objective = "irm-tv-l1 + vrex"
penalty_weight = [{ irm-tv-l1 = 1.0, vrex = 10.0 }, { irm-tv-l1 = 2.0 }]
measure = [0.25, 0.75]
fixed = { penalty_weight = { irm-tv-l1 = 2.0 } }

[selection]
rules = ["fixed", "invariance", "oracle"]
folds = 4
[selection.invariance]
level = 0.1

[published]
file = "numbers.json"
table = "simulation"
"""


@pytest.fixture
def folder(tmp_path):
    results = {"erm": {"plain": {"mean": {"value": 50.0}}}, "irm-tv-l1": {}}
    tables = {"simulation": {"metric": "accuracy_percent", "results": results}, "bare": {"results": {}}, "empty": {}}
    (tmp_path / "numbers.json").write_text(json.dumps(tables))
    (tmp_path / "full.toml").write_text(FULL)
    return tmp_path


@pytest.fixture
def full(folder):
    return load_spec(folder / "full.toml")


def changed(old: str, new: str, text: str = FULL) -> str:
    assert text.count(old) == 1, f"{old!r} must stand in the spec once"
    return text.replace(old, new)


# ---- a good spec


def test_a_spec_with_every_feature_is_read(full):
    assert (full.name, full.description, full.repetitions, full.first_seed) == ("simulation", "every feature", 3, 5)
    assert full.device == "auto"
    assert list(full.seeds) == [5, 6, 7]
    assert full.text == FULL
    assert list(full.data.settings) == ["ps=(0.999,0.7),pv=0.9", "plain"]
    assert full.training == Training(steps=200, learning_rate=1e-2, hidden=(8,), dtype="float64", snapshot_every=20)
    assert [m.label for m in full.methods] == ["ERM", "IRM-TV-l1", "irm-tv-l1 + vrex"]
    assert [m.objective for m in full.methods] == ["erm", "irm-tv-l1", "irm-tv-l1+vrex"]
    assert [m.published for m in full.methods] == ["erm", "irm-tv-l1", None]
    assert full.methods[1].settings == {"penalty_weight": [1, 100, 1e4], "hidden": [[], [32]], "steps": 300}
    assert full.selection == Selection(rules=("fixed", "invariance", "oracle"), folds=4, invariance={"level": 0.1})
    assert (full.published.file, full.published.table) == ("numbers.json", "simulation")
    assert full.published.metric == "accuracy_percent"
    assert full.published.results["erm"]["plain"]["mean"]["value"] == 50.0


def test_defaults():
    spec = parse_spec(MINIMAL)
    assert (spec.repetitions, spec.first_seed, spec.device, spec.description) == (10, 0, "cpu", "")
    assert spec.data.settings == {"simulation": {}}
    assert spec.methods[0].label == "erm"
    assert (spec.selection.rules, spec.selection.folds, spec.selection.invariance) == (("invariance",), 5, {})
    assert spec.published is None
    assert (spec.training.snapshot_every, spec.training.dtype) == (100, "float32")


def test_training_defaults_are_those_of_train():
    signature = inspect.signature(irmtv.train).parameters
    assert Training().keywords == {name: signature[name].default for name in Training().keywords}
    assert len(Training().keywords) == 9


def test_settings_that_came_later_are_left_out_where_they_say_nothing():
    old = {"steps": 2, "hidden": (), "measure": None}
    assert without_new_defaults({**old, "solver": "adam", "start": None, "layer": None}) == old
    new = {**old, "solver": "newton", "start": "erm", "layer": 3}
    assert without_new_defaults(new) == new
    assert without_new_defaults({"solver": "newton", "start": None}) == {"solver": "newton"}
    assert without_new_defaults({"start": "adam", "solver": None}) == {"start": "adam", "solver": None}


def test_a_solver_and_a_start_are_read_and_checked():
    text = MINIMAL.replace("[[methods]]", '[training]\nsolver = "newton"\nstart = "small"\n[[methods]]')
    spec = parse_spec(text + 'start = ["erm", "environment"]\n')
    assert (spec.training.solver, spec.training.start) == ("newton", "small")
    assert [c["start"] for c in spec.methods[0].combinations(spec.training)] == ["erm", "environment"]
    for old, new, said in (
        ('"newton"', '"lbfgs"', r"training.solver must be 'adam' or 'newton'\. Got 'lbfgs'"),
        ('"small"', '"large"', r"training.start must be one of \('erm', .*Got 'large'"),
    ):
        with pytest.raises(SpecError, match=said):
            parse_spec(text.replace(old, new))
    with pytest.raises(SpecError, match=r"start must be one of .*'best'"):
        parse_spec(text + 'start = "best"\n')


def test_specs_are_frozen(full):
    with pytest.raises(ValidationError, match="frozen"):
        full.repetitions = 1
    with pytest.raises(ValidationError, match="frozen"):
        full.methods[0].label = "other"


def test_a_setting_overrides_the_common_arguments(full):
    assert full.data.arguments_of("ps=(0.999,0.7),pv=0.9") == {"n_samples": 500, "p_s": [0.999, 0.7], "p_v": 0.9}
    assert full.data.arguments_of("plain") == {"n_samples": 500, "p_v": 0.7}
    with pytest.raises(ValueError, match=re.escape("setting must be one of") + ".*Did you mean 'plain'"):
        full.data.arguments_of("plian")


def test_a_metric_is_optional_in_a_published_table(folder):
    text = changed('table = "simulation"', 'table = "bare"').replace('published = "', '# "')
    assert parse_spec(text, folder).published.metric is None


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "bom.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load_spec(str(path)) == parse_spec(MINIMAL)


# ---- combinations


def test_the_last_key_of_a_grid_is_the_fastest(full):
    found = full.methods[1].combinations(full.training)
    expected = [(1, ()), (1, (32,)), (100, ()), (100, (32,)), (1e4, ()), (1e4, (32,))]
    assert [(c["penalty_weight"], c["hidden"]) for c in found] == expected
    assert found[0] == {
        "penalty_weight": 1,
        "hidden": (),  # the method's own, before the training's (8,)
        "steps": 300,
        "learning_rate": 1e-2,
        "l2": 0.0,
        "batch_size": "auto",
        "classifier": "scalar",
        "solver": "adam",
        "start": None,
        "layer": None,
    }


def test_penalty_weights_of_a_sum_are_tables(full):
    found = full.methods[2].combinations(full.training)
    assert [c["penalty_weight"] for c in found] == [{"irm-tv-l1": 1.0, "vrex": 10.0}, {"irm-tv-l1": 2.0}]
    assert [c["measure"] for c in found] == [(0.25, 0.75)] * 2
    assert full.methods[2].fixed_combination(full.training) == found[1]


@pytest.mark.parametrize(
    ("key", "value", "values"),
    [
        ("hidden", [], [()]),
        ("hidden", [32, 16], [(32, 16)]),
        ("hidden", [[], [32], [32, 16]], [(), (32,), (32, 16)]),
        ("hidden", [[32]], [(32,)]),
        ("measure", "uniform", ["uniform"]),
        ("measure", [0.5, 0.5], [(0.5, 0.5)]),
        ("measure", ["empirical", "uniform"], ["empirical", "uniform"]),
        ("measure", [[0.5, 0.5], "uniform"], [(0.5, 0.5), "uniform"]),
        ("warmup", 0.5, [0.5]),
        ("warmup", [0, 100], [0, 100]),
        ("normalise", [True, False], [True, False]),
    ],
)
def test_what_is_one_value_and_what_a_grid(key, value, values):
    method = Method(objective="irm-tv-l1", settings={key: value})
    assert [c[key] for c in method.combinations(Training())] == values


def test_the_fixed_combination_is_one_of_the_combinations(full):
    method = full.methods[1]
    found = method.fixed_combination(full.training)
    assert found == method.combinations(full.training)[5]
    assert isinstance(found["penalty_weight"], float)  # as the grid has it: 1e4, not the 10000 of `fixed`


def test_without_a_grid_the_fixed_combination_is_the_only_one(full):
    assert (full.methods[0].fixed_combination(full.training),) == full.methods[0].combinations(full.training)


def test_a_grid_without_fixed_has_no_fixed_combination():
    method = Method(objective="vrex", settings={"warmup": [1, 2]})
    with pytest.raises(ValueError, match=r"method 'vrex'.fixed must say which value of \['warmup'\]"):
        method.fixed_combination(Training())


AXES = {
    "penalty_weight": st.floats(0, 1e6),
    "warmup": st.integers(0, 1000),
    "hidden": st.lists(st.integers(1, 64), max_size=3),
    "learning_rate": st.floats(1e-5, 1.0),
    "measure": st.sampled_from(["empirical", "uniform", [1, 2], [2, 1]]),
}
GRIDS = st.fixed_dictionaries(
    {},
    optional={k: st.lists(v, min_size=1, max_size=4, unique_by=repr) for k, v in AXES.items()},
)


@settings(deadline=None)
@given(GRIDS, st.randoms())
def test_combinations_are_the_product_of_the_grids(grids, random):
    keys = list(grids)
    random.shuffle(keys)
    found = Method(objective="irm-tv-l1", settings={k: grids[k] for k in keys}).combinations(Training())
    values = {k: {str(tuple(v) if isinstance(v, list) else v) for v in grids[k]} for k in keys}
    assert len(found) == math.prod(len(v) for v in values.values())
    assert len({repr(sorted(c.items())) for c in found}) == len(found)
    for key in keys:
        assert {str(c[key]) for c in found} == values[key]


@settings(deadline=None)
@given(GRIDS)
def test_good_grids_are_accepted(grids):
    lines = [f"{k} = {json.dumps(v)}" for k, v in grids.items()]
    spec = parse_spec("\n".join([MINIMAL, '[[methods]]\nobjective = "irm-tv-l1"', *lines]))
    assert spec.methods[1].settings == grids
    assert len(spec.methods[1].combinations(spec.training)) == math.prod(map(len, grids.values()))


# ---- the hash


def test_the_hash_is_of_the_content(full, folder):
    other = changed("# a comment", "# another")
    other = changed("repetitions = 3\nfirst_seed = 5\n", "first_seed = 5\nrepetitions   =   3\n", other)
    other = changed("steps = 200\nlearning_rate = 1e-2\n", "learning_rate = 0.01\nsteps = 200\n", other)
    other = changed('label = "ERM"\npublished = "erm"\n', 'published = "erm"\nlabel = "ERM"\n', other)
    other = changed("n_samples = 500\np_v = 0.7\n", "p_v = 0.7\nn_samples = 500\n", other)
    other = changed("{ irm-tv-l1 = 1.0, vrex = 10.0 }", "{ vrex = 10.0, irm-tv-l1 = 1.0 }", other)
    other = changed('name = "simulation"                 ', 'name = "renamed"', other)
    other = changed("every feature", "other words", other)
    assert re.fullmatch("[0-9a-f]{64}", full.hash)
    assert parse_spec(other, folder).hash == full.hash
    # a value that is written out and equal to the default is no difference
    assert parse_spec(changed("steps = 200", "l2 = 0\nsteps = 200"), folder).hash == full.hash


def test_a_published_number_does_not_change_the_hash(full, folder):
    tables = json.loads((folder / "numbers.json").read_text())
    tables["simulation"]["results"]["erm"] = {"plain": {"mean": {"value": 51.0}}}
    (folder / "numbers.json").write_text(json.dumps(tables))
    assert load_spec(folder / "full.toml").hash == full.hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("repetitions = 3", "repetitions = 4"),
        ("first_seed = 5", "first_seed = 6"),
        ("n_samples = 500", "n_samples = 501"),
        ("[data.settings.plain]", "[data.settings.other]"),
        ("steps = 200", "steps = 201"),
        ("[1, 100, 1e4]", "[100, 1, 1e4]"),
        ("hidden = [32] }", "hidden = [] }"),
        ('label = "ERM"', 'label = "erm"'),
        ("folds = 4", "folds = 5"),
        ("level = 0.1", "level = 0.05"),
    ],
)
def test_the_hash_changes_with_the_content(full, folder, old, new):
    assert parse_spec(changed(old, new), folder).hash != full.hash


# ---- with_


def test_with_limits_a_spec(full):
    small = full.with_(repetitions=1, settings=["plain"], methods=["ERM"], device="cpu")
    assert (list(small.seeds), small.device) == ([5], "cpu")
    assert small.data.settings == {"plain": {}}
    assert [m.label for m in small.methods] == ["ERM"]
    assert (small.training, small.name) == (full.training, full.name)
    assert small.text.startswith(full.text)  # the file, and what was made of it
    assert (
        small.text.removeprefix(full.text) == "\n# as run: repetitions = 1, settings = ['plain'], methods = ['ERM']\n"
    )
    assert small.hash != full.hash
    assert full.repetitions == 3  # the spec itself is as it was


def test_with_nothing_changes_nothing(full, folder):
    same = full.with_()
    assert same.model_copy(update={"text": full.text}) == full
    assert same.hash == full.hash
    assert parse_spec(same.text, folder).hash == full.hash  # still TOML


def test_methods_are_chosen_by_label_or_objective_in_the_order_of_the_spec(full):
    chosen = full.with_(methods=["irm-tv-l1+vrex", "irm-tv-l1", "erm"])
    assert chosen.methods == full.methods
    assert [m.label for m in full.with_(methods=["IRM-TV-l1", "ERM"]).methods] == ["ERM", "IRM-TV-l1"]


def test_an_objective_stands_for_all_its_methods():
    text = MINIMAL + '[[methods]]\nobjective = "vrex"\nlabel = "a"\n[[methods]]\nobjective = "vrex"\nlabel = "b"\n'
    spec = parse_spec(text)
    assert [m.label for m in spec.with_(methods=["vrex", "erm"]).methods] == ["erm", "a", "b"]


def test_the_order_of_the_settings_is_the_specs(full):
    labels = list(full.data.settings)
    assert list(full.with_(settings=labels[::-1]).data.settings) == labels
    assert list(full.with_(settings=["plain", "plain"]).data.settings) == ["plain"]
    assert list(full.with_(settings="plain").data.settings) == ["plain"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"settings": ["plian"]}, "'plian' is not a setting of this spec, which has .* Did you mean 'plain'?"),
        ({"settings": []}, "settings must name at least one setting of .* Got none."),
        ({"methods": ["irm-tv-l"]}, "'irm-tv-l' is not a method of this spec, .* Did you mean 'irm-tv-l1'?"),
        ({"repetitions": 0}, "repetitions must be a whole number of at least 1. Got 0."),
        ({"device": "gpu"}, "device must be 'cpu', 'cuda', 'cuda:0' or 'auto'. Got 'gpu'."),
        ({"device": "gpu", "settings": ["x"]}, "2 problems\ndevice .*\n'x' is not a setting"),
    ],
)
def test_with_says_what_is_wrong(full, asked, message):
    with pytest.raises(SpecError, match=message):
        full.with_(**asked)


# ---- bad specs

BAD = {
    "TOML syntax": ("repetitions = 3", "repetitions = ", r"not valid TOML: .*line 4"),
    "TOML key twice": ("repetitions = 3", "repetitions = 3\nrepetitions = 4", r"not valid TOML: .*line 5"),
    "unknown key": ("repetitions = 3", "repetition = 3", r"repetition is not a known key; .*mean 'repetitions'\?"),
    "source text as a key": ("repetitions = 3", 'text = "a"', "text is not a known key"),
    "no name": ('name = "simulation"                 ', "", "name is missing: it must be a text"),
    "empty name": ('name = "simulation"                 ', 'name = ""', "name must be a text of .* Got ''"),
    "wrong type": ("repetitions = 3", 'repetitions = "three"', "repetitions must be a whole number .* Got 'three'"),
    "float for int": ("repetitions = 3", "repetitions = 3.0", r"repetitions must be a whole number .* Got 3\.0"),
    "bool for int": ("repetitions = 3", "repetitions = true", "repetitions must be a whole number .* Got True"),
    "no repetitions": ("repetitions = 3", "repetitions = 0", "repetitions must be .* at least 1. Got 0"),
    "negative seed": ("first_seed = 5", "first_seed = -1", "first_seed must be .* at least 0. Got -1"),
    "device": ('device = "auto"', 'device = "cdua"', "device must be .* Got 'cdua'. Did you mean 'cuda'?"),
    "device number": ('device = "auto"', 'device = "cuda:x"', "device must be .* Got 'cuda:x'"),
    # data
    "data set": (
        '[data]\nname = "simulation"',
        '[data]\nname = "simulatoin"',
        r"data\.name must be one of \[.*\]\. Got 'simulatoin'\. Did you mean 'simulation'\?",
    ),
    "data without name": (
        '[data]\nname = "simulation"',
        "[data]",
        "data.name is missing: it must be the name of a data",
    ),
    "data key": ("[data.arguments]", "[data.argument]", r"data\.argument is not a known key; .*mean 'arguments'\?"),
    "data argument": (
        "n_samples = 500",
        "n_sample = 500",
        r"data\.arguments\.n_sample is not an argument of data set 'simulation', .* Did you mean 'n_samples'\?",
    ),
    "random_state": (
        "n_samples = 500",
        "random_state = 1",
        r"data\.arguments\.random_state is not allowed: it is the seed of the repetition",
    ),
    "argument of a setting": (
        "p_s = [0.999, 0.7]",
        "ps = [0.999, 0.7]",
        r'data\.settings\."ps=\(0\.999,0\.7\),pv=0\.9"\.ps is not an argument .* Did you mean \'p_s\'\?',
    ),
    "setting that is no table": (
        "[data.settings.plain]",
        "[data.settings]\nplain = 1",
        r"data\.settings must be one table of arguments per setting.* Got \{.*'plain': 1",
    ),
    # training
    "training key": ("steps = 200", "stepss = 200", r"training\.stepss is not a known key.*Did you mean 'steps'\?"),
    "training key of others": ("learning_rate = 1e-2", "lr = 1e-2", r"training\.lr is .* mean 'learning_rate'\?"),
    "hyper-parameter": ("steps = 200", "warmup = 200", r"training\.warmup .* belong in its \[\[methods\]\]"),
    "training type": ("steps = 200", 'steps = "many"', r"training\.steps must be a whole number .* Got 'many'"),
    "training value": (
        "learning_rate = 1e-2",
        "learning_rate = 0",
        r"training\.learning_rate must be .*above 0. Got 0",
    ),
    "training nan": ("learning_rate = 1e-2", "learning_rate = nan", r"training\.learning_rate must be .* Got nan"),
    "training grid": ("steps = 200", "steps = [200]", r"training\.steps must be .* A grid belongs in \[\[methods\]\]"),
    "training hidden": ("hidden = [8]", "hidden = 8", r"training\.hidden must be a list of whole numbers .* Got 8"),
    "training hidden grid": ("hidden = [8]", "hidden = [[8]]", r"training\.hidden must be .* A grid belongs in"),
    "dtype": ('dtype = "float64"', 'dtype = "float46"', r"training\.dtype must be .* Did you mean 'float64'\?"),
    "snapshots": ("snapshot_every = 20", "snapshot_every = 0", r"training\.snapshot_every must be .* Got 0"),
    "training as a value": ("[training]\n", "[other]\n", "other is not a known key"),
    # methods
    "objective": (
        'objective = "irm-tv-l1"',
        'objective = "imr-tv-l1"',
        r"methods\[1\]\.objective must be one of \[.*\], or a sum .* Got 'imr-tv-l1'\. Did you mean 'irm-tv-l1'\?",
    ),
    "no objective": ('objective = "irm-tv-l1"\n', "", r"methods\[1\]\.objective is missing: it must be the name of"),
    "objective type": ('objective = "irm-tv-l1"\n', "objective = 1\n", r"methods\[1\]\.objective must be .* Got 1"),
    "a sum of the same": ("irm-tv-l1 + vrex", "vrex + vrex", r"methods\[2\]\.objective: a sum of objectives must"),
    "label type": ('label = "ERM"', "label = 1", r"methods\[0\]\.label must be a text .* Got 1"),
    "label twice": (
        'label = "IRM-TV-l1"',
        'label = "ERM"',
        r"methods\[1\]\.label must be unique. Got 'ERM', the label of methods\[0\]",
    ),
    "hyper-parameter name": (
        "penalty_weight = [1, 100, 1e4]",
        "penalty_wieght = [1, 100, 1e4]",
        r"methods\[1\]\.penalty_wieght is neither a hyper-parameter of 'irm-tv-l1', .* Did you mean 'penalty_weight'\?",
    ),
    "other name": ("steps = 300", "epochs = 300", r"methods\[1\]\.epochs is neither .* Did you mean 'steps'\?"),
    "settings as a key": ("steps = 300", "settings = 300", r"methods\[1\]\.settings is neither"),
    "method key": ("steps = 300", 'labels = "a"', r"methods\[1\]\.labels is neither .* Did you mean 'label'\?"),
    "dtype of a method": ("steps = 300", 'dtype = "float32"', r"methods\[1\]\.dtype is the same for all methods"),
    "seed of a method": ("steps = 300", "seed = 1", r"methods\[1\]\.seed is not allowed: the seed is the repetition's"),
    "hyper-parameter of another": ("steps = 300", "n_environments = 2", r"methods\[1\]\.n_environments is neither"),
    "hyper-parameter value": (
        "[1, 100, 1e4]",
        "[1, -100, 1e4]",
        r"methods\[1\]\.penalty_weight\[1\]: penalty_weight of 'irm-tv-l1' must be a finite number .* Got -100",
    ),
    "infinite weight": ("[1, 100, 1e4]", "inf", r"methods\[1\]\.penalty_weight: .* finite number .* Got inf"),
    "training value of a method": ("steps = 300", "steps = 0", r"methods\[1\]\.steps must be a whole .* Got 0\.$"),
    "hidden of a method": ("[[], [32]]", "[[], [0]]", r"methods\[1\]\.hidden\[1\] must be a list of .* Got \(0,\)"),
    "table for one penalty": (
        "[1, 100, 1e4]",
        "{ vrx = 1 }",
        r"methods\[1\]\.penalty_weight: .* a mapping over \['irm-tv-l1'\]",
    ),
    "name in a table": ("vrex = 10.0", "vrx = 10.0", r"methods\[2\]\.penalty_weight\[0\]: .*Did you mean 'vrex'\?"),
    "list in a grid": ("[1, 100, 1e4]", "[[1, 100], 1e4]", r"methods\[1\]\.penalty_weight\[0\] must be a single value"),
    "combination": (
        "steps = 300",
        'reduction = ["expectation", "authors"]\nmeasure = "uniform"',
        r"methods\[1\]: reduction='authors' weighs slopes",
    ),
    "empty grid": ("[1, 100, 1e4]", "[]", r"methods\[1\]\.penalty_weight is an empty grid"),
    "value twice": ("[1, 100, 1e4]", "[1, 1e4, 1.0]", r"methods\[1\]\.penalty_weight\[2\] is 1\.0, which the grid has"),
    "hidden twice": ("[[], [32]]", "[[32], [32]]", r"methods\[1\]\.hidden\[1\] is \(32,\), which the grid has already"),
    "table twice": (
        "{ irm-tv-l1 = 2.0 }]",
        "{ vrex = 10, irm-tv-l1 = 1 }]",
        r"methods\[2\]\.penalty_weight\[1\] is .* which the grid has",
    ),
    "warm-up as long as the training": (
        "steps = 300",
        "steps = 300\nwarmup = 300",
        r"methods\[1\]: warmup must be shorter than steps=300, or the penalty never acts\. Got warmup=300\.",
    ),
    "warm-up longer than the training": (
        "steps = 300",
        "steps = 300\nwarmup = 301",
        r"methods\[1\]: warmup must be sho",
    ),
    "warm-up that rounds to the whole": ("steps = 300", "steps = 300\nwarmup = 0.999", r"shorter .* Got warmup=0\.999"),
    # fixed
    "fixed type": ("{ penalty_weight = 10000, hidden = [32] }", "1e4", r"methods\[1\]\.fixed must be a table .* Got 1"),
    "fixed not there": (
        "fixed = { penalty_weight = 10000, hidden = [32] }",
        "",
        r"methods\[1\]\.fixed must say which value of \['penalty_weight', 'hidden'\] the rule 'fixed' takes",
    ),
    "fixed not complete": (", hidden = [32] }", "}", r"methods\[1\]\.fixed must say which value of \['hidden'\]"),
    "fixed not in the grid": (
        "penalty_weight = 10000",
        "penalty_weight = 10",
        r"methods\[1\]\.fixed\.penalty_weight must be one of the method's values \[1, 100, 10000\.0\]\. Got 10\.",
    ),
    "fixed key": (
        "{ penalty_weight = 10000",
        "{ penalty_weigth = 10000",
        r"methods\[1\]\.fixed\.penalty_weigth is not a setting of this method, .* Did you mean 'penalty_weight'\?",
    ),
    # selection
    "rule": (
        '"oracle"',
        '"orcale"',
        r"selection\.rules\[2\] must be one of \[.*\]\. Got 'orcale'\. Did you mean 'oracle'\?",
    ),
    "rule twice": ('"oracle"', '"fixed"', r"selection\.rules\[2\] is 'fixed', which the list has already"),
    "no rules": ('["fixed", "invariance", "oracle"]', "[]", r"selection\.rules is empty"),
    "rules type": (
        '["fixed", "invariance", "oracle"]',
        '"fixd"',
        r"selection\.rules must be a list of rules, .* Got 'fixd'",
    ),
    "rule type": ('"oracle"]', "1]", r"selection\.rules must be a list of rules, .* Got \['fixed', 'invariance', 1\]"),
    "one fold": ("folds = 4", "folds = 1", r"selection\.folds must be a whole number from 2 to 1000\. Got 1"),
    "selection key": ("folds = 4", "fold = 4", r"selection\.fold is not a known key; .* Did you mean 'folds'\?"),
    "no reference": (
        'objective = "erm"\n',
        'objective = "vrex"\n',
        r"the rule 'invariance' .* Add the lines \[\[methods\]\] and objective = \"erm\"",
    ),
    # published
    "no file": ('"numbers.json"', '"number.json"', r"published\.file cannot be read: .*number\.json \(No such file"),
    "file is no JSON": ('"numbers.json"', '"full.toml"', r"published\.file must be a JSON file\. .*full\.toml is not"),
    "file is a folder": ('"numbers.json"', '"."', r"published\.file cannot be read: .*directory"),
    "table": (
        'table = "simulation"',
        'table = "simulations"',
        r"published\.table must be one of \['bare', 'empty', 'simulation'\].* Did you mean 'simulation'\?",
    ),
    "table without results": ('table = "simulation"', 'table = "empty"', r"published\.table 'empty' .*\"results\""),
    "no table": ('table = "simulation"', "", r"published\.table is missing"),
    "published key": ('table = "simulation"', 'tabel = "simulation"', r"published\.tabel .* Did you mean 'table'\?"),
    "results in the spec": ("[published]", "[published]\nresults = {}", r"published\.results is not a known key"),
    "method's published": (
        'published = "irm-tv-l1"',
        'published = "irm-tv-1l"',
        r"methods\[1\]\.published must be one of \['erm', 'irm-tv-l1'\]\. Got 'irm-tv-1l'\. Did you mean",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), BAD.values(), ids=BAD)
def test_a_bad_spec_is_told_what_is_wrong(folder, old, new, message):
    with pytest.raises(SpecError, match=message) as caught:
        parse_spec(changed(old, new), folder, "my.toml")
    assert str(caught.value).startswith("my.toml: ")


# a misspelt key that is needed is unknown and missing; the new grid of "combination" needs a fixed value too
TWO_MISTAKES = {"published key", "combination"}


@pytest.mark.parametrize("name", sorted(BAD.keys() - TWO_MISTAKES))
def test_one_mistake_is_one_problem(folder, name):
    """Consequences of a mistake are not reported as further mistakes."""
    old, new, _ = BAD[name]
    with pytest.raises(SpecError) as caught:
        parse_spec(changed(old, new), folder)
    assert len(caught.value.problems) == 1, caught.value


WHOLE = {
    "nothing": ("", r"3 problems\nname is missing.*\ndata is missing: add .*\nmethods is empty: add"),
    "no data": (MINIMAL.replace("data.name", "# "), "data is missing: add the lines"),
    "data as a value": (MINIMAL.replace("data.name", "data"), r"data must be a table, begun with \[data\]"),
    "empty settings": (
        MINIMAL.replace("[[", "[data.settings]\n[[", 1),
        r"data\.settings must be one table .* Got \{\}",
    ),
    "training as a value": ("training = 1" + MINIMAL, r"training must be a table, begun with \[training\]\. Got 1"),
    "no methods": ('name = "a"\ndata.name = "simulation"', r"methods is empty: add the lines \[\[methods\]\]"),
    "empty methods": ('name = "a"\ndata.name = "simulation"\nmethods = []', "methods is empty"),
    "methods as a table": (
        MINIMAL.replace("[[methods]]", "[methods]"),
        r"methods must be a list of tables, .*\[\[meth",
    ),
    "methods as names": ('name = "a"\ndata.name = "simulation"\nmethods = ["erm"]', "methods must be a list of tables"),
    "no [published]": (MINIMAL + 'published = "erm"', r"methods\[0\]\.published is 'erm', but the spec has no \[publ"),
    "default label twice": (
        MINIMAL + '[[methods]]\nobjective = "erm"',
        r"methods\[1\]\.label must be unique. Got 'erm'",
    ),
}


@pytest.mark.parametrize(("text", "message"), WHOLE.values(), ids=WHOLE)
def test_a_spec_that_lacks_a_part(text, message):
    with pytest.raises(SpecError, match=message):
        parse_spec(text)


def one_data_set(monkeypatch, make):
    monkeypatch.setattr(spec_file, "DATASETS", {"simulation": SimpleNamespace(make=make)})


def test_arguments_without_default_must_be_given_somewhere(monkeypatch):
    one_data_set(monkeypatch, lambda path, column, *, random_state, rows=10: None)
    text = MINIMAL.replace(
        "[[", 'data.arguments.column = "y"\n[data.settings."a b"]\n[data.settings.b]\npath = "c"\n[[', 1
    )
    with pytest.raises(
        SpecError, match=r"""data\.settings\."a b" lacks \['path'\], which data set 'simulation' needs"""
    ) as e:
        parse_spec(text)
    assert len(e.value.problems) == 1


def test_a_data_set_may_take_any_argument_but_not_the_seed(monkeypatch):
    one_data_set(monkeypatch, lambda **anything: None)
    assert parse_spec("data.arguments.a = 1" + MINIMAL).data.arguments_of("simulation") == {"a": 1}
    with pytest.raises(SpecError, match="random_state is not allowed"):
        parse_spec("data.arguments.random_state = 1" + MINIMAL)


def test_all_problems_are_listed_one_per_line(folder):
    text = changed("repetitions = 3", "repetitions = 0")
    text = changed("n_samples = 500", "n_sample = 500", text)
    text = changed("steps = 200", "stepss = 200", text)
    text = changed("[1, 100, 1e4]", "[1, -100, 1e4]", text)
    text = changed("hidden = [32] }", "hidden = [31] }", text)
    text = changed("irm-tv-l1 + vrex", "irm-tv-l1 + vrx", text)
    text = changed("folds = 4", "folds = 1", text)
    text = changed('table = "simulation"', 'table = "simulations"', text)
    with pytest.raises(SpecError) as caught:
        parse_spec(text, folder, "my.toml")
    head, *lines = str(caught.value).splitlines()
    assert head == "my.toml: 8 problems"
    assert lines == list(caught.value.problems)
    starts = ["repetitions", "data.arguments.n_sample", "training.stepss", "selection.folds", "published.table"]
    starts += ["methods[2].objective", "methods[1].penalty_weight[1]", "methods[1].fixed.hidden"]
    assert [line.split()[0].rstrip(":") for line in lines] == starts


@pytest.mark.parametrize(
    "method",
    [
        'objective = "vrex"\nsteps = 300\nwarmup = 299',
        'objective = "vrex"\nsteps = 300\nwarmup = 300\npenalty_weight = 0',
        'objective = "irmv1"\nsteps = 300\nwarmup = 300',  # its penalty acts in the warm-up too
        'objective = "erm"\nlabel = "b"\nsteps = 1',
    ],
)
def test_a_warm_up_may_be_long_where_the_penalty_acts_all_the_same_or_there_is_none(method):
    parse_spec(MINIMAL + f"[[methods]]\n{method}")


@pytest.mark.parametrize(
    ("grid", "name"),
    [
        ("n_environments = [2, 3]", "n_environments"),
        ("warmup = [10, 20]", "warmup"),
        ("learning_rate = [0.1, 0.2]", "learning_rate"),
        ("hidden = [[], [4]]", "hidden"),
    ],
)
def test_invariance_wants_the_same_inferred_environments_for_all_candidates(grid, name):
    minimax = MINIMAL + '[[methods]]\nobjective = "minimax-tv-l1"\npenalty_weight = [0, 10, 100]\n'
    invariance = '\n[selection]\nrules = ["invariance"]'
    parse_spec(minimax + invariance)
    with pytest.raises(
        SpecError, match=rf"methods\[1\]: .* a grid over {name} would give them different ones"
    ) as caught:
        parse_spec(minimax + grid + invariance)
    assert len(caught.value.problems) == 1
    parse_spec(minimax + grid + invariance.replace("invariance", "iid"))  # the other rules do not test them
    given_ = minimax.replace("minimax-tv-l1", "vrex")
    if name != "n_environments":
        parse_spec(given_ + grid + invariance)  # given environments are the same anyway


def test_a_misspelt_erm_is_not_a_missing_reference():
    with pytest.raises(SpecError) as caught:
        parse_spec(MINIMAL.replace('"erm"', '"emr"'))
    assert len(caught.value.problems) == 1
    assert "Got 'emr'. Did you mean 'erm'?" in str(caught.value)


def test_an_erm_with_a_wrong_setting_is_not_a_missing_reference():
    with pytest.raises(SpecError, match="learning_rate") as caught:
        parse_spec(MINIMAL + 'learning_rate = -1\n[[methods]]\nobjective = "vrex"')
    assert len(caught.value.problems) == 1


def test_rules_without_invariance_need_no_reference():
    text = MINIMAL.replace('"erm"', '"vrex"') + '[selection]\nrules = ["iid"]'
    assert parse_spec(text).selection.rules == ("iid",)


def test_a_grid_needs_no_fixed_where_the_rule_is_not_asked_for():
    spec = parse_spec(MINIMAL + '[[methods]]\nobjective = "vrex"\nwarmup = [10, 20]')
    assert len(spec.methods[1].combinations(spec.training)) == 2


# ---- files


def test_a_file_that_is_not_there(folder):
    with pytest.raises(SpecError, match=r"ful\.toml: there is no such spec file\. Did you mean '.*full\.toml'\?"):
        load_spec(folder / "ful.toml")


def test_a_folder_is_no_spec(folder):
    with pytest.raises(SpecError, match=r"this is a folder; TOML files in it: \['full\.toml'\]"):
        load_spec(folder)


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "bad.toml").write_bytes(b"name = '\xff\xfe'")
    with pytest.raises(SpecError, match=r"bad\.toml: the spec file cannot be read as UTF-8 text"):
        load_spec(tmp_path / "bad.toml")


def test_the_published_file_is_beside_the_spec_file(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    spec = load_spec(f"{folder.name}/full.toml")
    assert isinstance(spec, Spec)
    assert set(spec.published.results) == {"erm", "irm-tv-l1"}


def test_a_spec_error_is_a_value_error():
    assert issubclass(SpecError, ValueError)


def test_with_keeps_what_invariance_compares_with(full):
    assert "invariance" in full.selection.rules
    kept = full.with_(methods=["IRM-TV-l1"]).methods
    assert [m.objective for m in kept if m.label != "IRM-TV-l1"] == ["erm"]


REFERENCES = """
name = "references"
data.name = "simulation"
[[methods]]
objective = "erm"
"""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('[[methods]]\nobjective = "minimax-tv-l1"\nwarmup = 150', "Add 0 to its grid"),
        (
            '[[methods]]\nobjective = "vrex"\nenvironments = "inferred"',
            'objective = "erm" and environments = "inferred"',
        ),
        ('[[methods]]\nobjective = "minimax-tv-l1"\nenvironments = "inferred"', "infers its own from aux"),
        ('[[methods]]\nobjective = "vrex"\nenvironments = "guessed"', "environments must be .*inferred"),
        ("[selection.invariance]\nlevels = 0.1", "Did you mean 'level'"),
        ("[selection.invariance]\nlevel = 2", "level must be a number from 0 to 1. Got 2"),
        ('[selection.pools]\nall = ["erm", "vrx"]', r"selection.pools.all must name methods of \['erm'\]. Got 'vrx'"),
        ('[selection.pools]\nerm = ["erm"]', "must differ from the labels"),
        ("[selection.pools]\nall = []", "selection.pools.all is empty"),
        (
            '[[methods]]\nobjective = "minimax-tv-l1"\npenalty_weight = [0, 1]\n[selection.pools]\n'
            'all = ["erm", "minimax-tv-l1"]',
            "measured on different environments",
        ),
    ],
)
def test_references_pools_and_options(more, message):
    with pytest.raises(SpecError, match=message):
        parse_spec(REFERENCES + more)


@pytest.mark.parametrize(
    ("method", "stands"),
    [
        ('objective = "minimax-tv-l1"', True),  # half of 2000 steps, a snapshot every 100
        ('objective = "tiva"\nwarmup = 300', True),
        ('objective = "zin"\nwarmup = 0.25', True),
        ('objective = "ood-tv-minimax-l1"\nsteps = 900\nwarmup = 0.333', True),
        ('objective = "minimax-tv-l1"\npenalty_weight = ["adaptive", 10]', True),
        ('objective = "minimax-tv-l1"\nwarmup = 0.333', False),  # 666 steps
        ('objective = "minimax-tv-l1"\nsteps = 900', False),  # 450 steps
        ('objective = "minimax-tv-l1"\nwarmup = 0', False),  # environments at their random start
        ('objective = "minimax-tv-l1"\nschedule = "alternating"', False),  # they change to the last step
        ('objective = "minimax-tv-l1"\nmeasure = "learned"', True),  # the risk is the mean loss, whatever the measure
        ('objective = "tiva"\ngated = true', False),
    ],
)
def test_a_warm_up_that_ends_at_a_snapshot_is_a_reference(method, stands):
    text = f"{REFERENCES}[[methods]]\n{method}\n"
    if stands:
        parse_spec(text)
    else:
        with pytest.raises(SpecError, match=r"Add 0 to .* warmup a multiple of snapshot_every = 100 above 0") as caught:
            parse_spec(text)
        assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("reference", "method", "message"),
    [
        ("", 'objective = "hrm"\npenalty_weight = 0', 'no method has objective "erm"'),
        ("", 'objective = "lff"', 'no method has objective "erm"'),
        ("", 'objective = "sparse-irm"\npenalty_weight = 0', 'no method has objective "erm"'),
        ('measure = "learned"\n', 'objective = "vrex"', 'no method has objective "erm" with a measure that is not'),
        ("", 'objective = "tiva"\npenalty_weight = [0, 1]\ngated = true', "it is none even at penalty_weight = 0"),
    ],
)
def test_what_is_never_plain_is_no_reference(reference, method, message):
    erm = reference or 'environments = "inferred"\n'
    with pytest.raises(SpecError, match=message):
        parse_spec(f"{REFERENCES}{erm}[[methods]]\n{method}\n")


def test_a_pool_of_methods_with_inferred_environments():
    text = (
        REFERENCES
        + """environments = "inferred"
[[methods]]
objective = "vrex"
environments = "inferred"
penalty_weight = [1, 10]
[[methods]]
objective = "minimax-tv-l1"
penalty_weight = [0, 10]
[selection.pools]
both = ["erm", "vrex"]
"""
    )
    spec = parse_spec(text)
    assert spec.selection.pools == {"both": ("erm", "vrex")}
    assert [m.measured_on for m in spec.methods] == ["inferred", "inferred", "own"]
    assert spec.with_(methods=["minimax-tv-l1"]).selection.pools == {}


NEWTON = """solver = "newton"
[[methods]]
objective = "minimax-tv-l1"
label = "a"
solver = "newton"
penalty_weight = [0, 10]
[[methods]]
objective = "minimax-tv-l1"
label = "b"
solver = "newton"
penalty_weight = [0, 100]
classifier = "vector"
start = ["erm", "equal-risks"]
OTHER
[selection.pools]
both = ["a", "b"]
"""


def test_methods_that_infer_environments_by_newtons_method_can_be_pooled():
    """These are found at ERM: penalty weights, classifiers and starts have no part in them."""
    spec = parse_spec(REFERENCES + NEWTON.replace("OTHER", ""))
    assert spec.selection.pools == {"both": ("a", "b")}


@pytest.mark.parametrize("other", ["l2 = 0.1", "n_environments = 3", 'solver = "adam"'])
def test_methods_that_infer_other_environments_cannot_be_pooled(other):
    text = NEWTON.replace('solver = "newton"\n', "", 3) if "solver" in other else NEWTON
    text = text.replace("OTHER", other)
    with pytest.raises(SpecError, match="both mixes methods that are measured on different environments"):
        parse_spec(REFERENCES + text.replace('start = ["erm", "equal-risks"]\n', ""))


def test_erm_stands_beside_methods_that_are_trained_as_it_is():
    text = (
        REFERENCES
        + """label = "ERM"
[[methods]]
objective = "erm"
label = "ERM, solved"
solver = "newton"
[[methods]]
objective = "vrex"
[[methods]]
objective = "vrex"
label = "solved"
solver = "newton"
[[methods]]
objective = "eills"
"""
    )
    spec = parse_spec(text)
    erm, solved_erm, vrex, solved, eills = spec.methods
    assert spec.references([vrex]) == spec.references([erm]) == (erm,)
    assert spec.references([solved, eills]) == (solved_erm,)
    assert spec.references([vrex, solved]) == (erm, solved_erm)
    assert spec.with_(methods=["eills"]).methods == (solved_erm, eills)
    alone = spec.with_(methods=["ERM", "vrex"])
    assert alone.references([alone.methods[1]]) == (erm,)
    without = parse_spec(REFERENCES + '[[methods]]\nobjective = "eills"\n')
    assert without.references([without.methods[1]]) == (without.methods[0],)  # any, where there is no other
