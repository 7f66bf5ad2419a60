"""docs/specs.md: its example is a spec, its code runs, and it names every key with the default that the code has."""

from __future__ import annotations

import re
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from contracts.test_docs_guide import same
from irmtv.datasets import DATASETS
from irmtv.lab.experiments import Spec, SpecError, load_spec, parse_spec, plan
from irmtv.lab.experiments.results import COLUMNS
from irmtv.lab.experiments.spec import LIST_VALUED, METHOD_KEYS, Data, Head, Method, PublishedTable, Selection, Training
from irmtv.lab.experiments.store_files import TABLES
from irmtv.objectives import BUILT_IN, OBJECTIVES
from irmtv.objectives.base import FOLLOWS_PHI
from irmtv.selection import RULES
from irmtv.selection.options import DEFAULTS
from paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "specs.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
SMALL, COMPLETE, WRONG = (text for kind, text in BLOCKS if kind == "toml")
SMALLER = {"repetitions = 4": "repetitions = 1", "n_samples = 1000": "n_samples = 200", "n_test = 2000": "n_test = 200"}
SMALLER |= {"steps = 300": "steps = 40", "warmup = 100 ": "warmup = 10 ", "snapshot_every = 50": "snapshot_every = 20"}
SMALLER |= {"warmup = 100\n": "warmup = 10\n"}
MODELS = {
    "### Head": Head,
    "### `[data]`": Data,
    "### `[training]`": Training,
    "### `[[methods]]`": Method,
    "### `[selection]`": Selection,
    "### `[published]`": PublishedTable,
}


def blocks(kind: str) -> list[str]:
    return [text for k, text in BLOCKS if k == kind]


def section(heading: str) -> str:
    _, found, rest = PAGE.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> dict[str, list[str]]:
    """First cell of each row of the tables, without backticks, to the others."""
    cells = [re.split(r"\s*\|\s*", line.strip("| ")) for line in text.splitlines() if line.startswith("| `")]
    return {first.strip("`"): others for first, *others in cells}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "first.toml").write_text(COMPLETE)
    (tmp_path / "published.json").write_text(blocks("json")[0])
    return tmp_path


@pytest.mark.parametrize("text", [SMALL, COMPLETE], ids=["small", "complete"])
def test_the_examples_are_specs(text, folder):
    spec = parse_spec(text, folder)
    settings = max(1, len(spec.data.settings))
    runs = sum(len(m.combinations(spec.training)) for m in spec.methods) * settings * spec.repetitions
    assert f"{runs * (1 + spec.selection.folds)} runs: 0 were there" in PAGE


def test_the_example_shows_every_section_and_every_key_of_head_and_training(folder):
    raw = tomllib.loads(COMPLETE)
    assert {*raw} == {*Spec.model_fields} - {"text"}
    for_series = {"network"}  # the example is a table
    of_newton = {"layer"}  # the example is Adam's
    assert {*raw["training"]} == {*Training.model_fields} - for_series - of_newton
    assert {key for method in raw["methods"] for key in method} >= {*METHOD_KEYS} - for_series
    assert {*raw["selection"]} == {*Selection.model_fields}


@pytest.mark.parametrize("heading", MODELS)
def test_every_key_has_a_row_with_its_default(heading):
    fields = MODELS[heading].model_fields
    keys = METHOD_KEYS if heading == "### `[[methods]]`" else tuple(fields)
    table = rows(section(heading))
    assert [key for key in keys if key not in table] == []
    for key in keys:
        stated, field = table[key][1], fields[key]
        if stated.startswith("`"):
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            assert tomllib.loads(f"v = {stated.strip('`')}")["v"] == default, key
        elif stated == "needed":
            assert field.is_required(), key
        elif stated == "none":
            assert field.default is None and not field.is_required(), key


def test_every_rule_and_every_option_of_invariance_has_a_row():
    table = rows(section("### `[selection]`"))
    assert [rule for rule in RULES if rule not in table] == []
    stated = {option: tomllib.loads(f"v = {table[option][1].strip('`')}")["v"] for option in DEFAULTS}
    assert stated == DEFAULTS


def test_what_else_the_page_names():
    tables = re.findall(r"CREATE TABLE (\w+)", TABLES)
    for name in (*COLUMNS, *tables, *LIST_VALUED, *DATASETS, *(o.name for o in BUILT_IN)):
        assert f"`{name}`" in PAGE, name
    for word in (*DATASETS, *FOLLOWS_PHI):
        assert f'`"{word}"`' in PAGE, word
    *others, last = (f"`{name}`" for name in DATASETS)
    assert f"today {', '.join(others)} and {last}" in PAGE
    at_most = f"at most {plan.RUNS_PER_GROUP['cpu']} on a CPU, {plan.RUNS_PER_GROUP['cuda']:,} on a GPU"
    assert at_most in PAGE
    assert "\N{EM DASH}" not in PAGE


def test_objectives_stand_where_they_belong():
    """In the table of where environments come from."""
    found = dict(re.findall(r"^\| (labels|aux|nothing): .*? \| (.*) \|$", section("### `[[methods]]`"), re.MULTILINE))
    for needs, where in {"environment": "labels", "aux": "aux", "nothing": "nothing"}.items():
        assert set(re.findall(r"`([^`]+)`", found[where])) == {o.name for o in OBJECTIVES.values() if o.needs == needs}


def test_the_wrong_example_is_answered_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wrong.toml").write_text(WRONG)
    with pytest.raises(SpecError) as raised:
        load_spec("wrong.toml")
    assert f"irmtv: {raised.value}\n" in blocks("text")


@pytest.mark.parametrize("statement", blocks("sql"))
def test_sql_fits_the_tables(statement):
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        assert connection.execute(statement).fetchall() == []


def test_python_runs(folder, monkeypatch, capsys):
    text = COMPLETE
    for shown, smaller in SMALLER.items():
        assert shown in text, shown
        text = text.replace(shown, smaller)
    (folder / "first.toml").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setitem(plan.INFERENCE, "steps", 20)
    for code in blocks("python"):
        exec(compile(code, "docs/specs.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("96 0 96 0 ()\n")
    written = {path.name for path in (folder / "results" / "first").iterdir()}
    assert written >= {f"first{end}" for end in (".md", ".csv", ".tex", "-tests.csv", "-choices.csv")}


def test_the_small_example_prints_what_is_shown(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("small.toml").write_text(SMALL)
    ended = command("run", "small.toml", "--out", "results/small")
    assert ended.code == 0, ended.err
    counts, table = blocks("text")[0].split("\n", 1)
    assert re.sub(r"in \d+ s", "", counts) in re.sub(r"in \d+ s", "", ended.err + ended.out)
    assert same(table.partition("...")[0], ended.out)
