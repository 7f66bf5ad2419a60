"""Specs that never end, reach elsewhere or ask for too much are refused before anything is built."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from irmtv.lab.experiments import run_experiment
from irmtv.lab.experiments.spec import SpecError
from irmtv.lab.experiments.spec_file import load_spec, parse_spec
from lab.experiments.records import POSIX
from lab.experiments.small import ERM, small, small_text


@POSIX
def test_pipes_and_devices_are_no_specs(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path / "pipe.toml", Path("/dev/zero")):
        with pytest.raises(SpecError, match=r"it is a pipe or a device, not an ordinary file"):
            load_spec(path)
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(SpecError, match=r"it has 1,099,511,627,776 bytes, more than 10,000,000"):
        load_spec(large)


@POSIX
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("pipe.json", "it is a pipe or a device"),
        ("/dev/zero", "must be the name of a file beside the spec file, or below. Got '/dev/zero'"),
        ("../secret.json", "must be the name of a file beside the spec file, or below"),
        ("deep.json", "is nested too deeply"),
    ],
)
def test_published_results_stand_beside_the_spec(tmp_path, file, said):
    folder = tmp_path / "specs"
    folder.mkdir()
    os.mkfifo(folder / "pipe.json")
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    (folder / "deep.json").write_text("[" * 100_000)
    text = small_text() + f'[published]\nfile = "{file}"\ntable = "t"\n'
    with pytest.raises(SpecError) as error:
        parse_spec(text, folder)
    assert said in str(error.value) and "secret'" not in str(error.value)


@pytest.mark.parametrize("value", ["[" * 5000, "{a=" * 5000, "9" * 5000])
def test_toml_that_python_cannot_read_is_one_message(value):
    with pytest.raises(SpecError, match=r"this is not valid TOML"):
        parse_spec(f"name = {value}")


@pytest.mark.parametrize("name", ["x" * 61, ".", "..", ".hidden", "a/b"])
def test_names_that_are_no_file_names_are_refused_before_training(name):
    with pytest.raises(SpecError, match=r"name must be a text of 1 to 60 characters"):
        parse_spec(small_text().replace('name = "small"', f'name = "{name}"'))


def test_very_many_runs_are_asked_for_twice(tmp_path):
    spec = small(ERM, {"objective": "irm-tv-l1", "penalty_weight": [1.0, 10.0]}, rules=["iid"], repetitions=10**9)
    with pytest.raises(ValueError, match=r"asks for 9,000,000,000 runs \(1,000,000,000 repetitions of 9\).*--yes"):
        run_experiment(spec, tmp_path / "x")
    assert not (tmp_path / "x").exists()
