"""Tables that are read in blocks: the answer is that of the same table in memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from app.fit.tables import spurious_table
from app.io.folders import write_folder
from irmtv.app.diagnose import diagnose_table
from irmtv.app.fit import families, fit_table
from irmtv.app.fit.sample import FEWEST_OF_ENVIRONMENT, drawn
from irmtv.app.io import TableError, read_table

LITTLE = 1000  # bytes: everything is read in blocks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two sites of 1,500 rows, with gaps, in row groups of 400 rows."""
    frame = spurious_table(3000, seed=1).drop(columns="day")
    frame["code"] = np.random.default_rng(0).integers(10, 14, len(frame))
    frame.loc[[3, 1700], "sold"] = None
    return write_folder(tmp_path_factory.mktemp("sales"), frame, "site", rows=400)


def both(folder, **how):
    return tuple(fit_table(folder, "sold", ["site"], memory=memory, **how) for memory in ("10GB", LITTLE))


def notes(answer):
    return " | ".join(answer.summary["data"]["notes"])


@pytest.mark.parametrize("objective", ["auto", "erm"])
def test_a_linear_model_has_the_coefficients_of_the_table_in_memory(folder, objective):
    memory, blocks = both(folder, model="linear", objective=objective, categorical=["code"])
    for name in ("coef_", "intercept_"):
        whole = getattr(memory.pipeline[-1], name)
        assert abs(getattr(blocks.pipeline[-1], name) - whole).max() <= 1e-6 * abs(memory.pipeline[-1].coef_).max()
    for key in ("outcome", "headline", "classes", "model"):
        assert blocks.summary[key] == memory.summary[key]
    for a, b in zip(memory.summary["path"], blocks.summary["path"], strict=True):
        assert (b["label"], b["chosen"]) == (a["label"], a["chosen"]) and b["risk"] == pytest.approx(a["risk"])
    assert blocks.summary["first_look"]["overlap"] == memory.summary["first_look"]["overlap"]
    own = notes(blocks)
    assert "larger than the memory (--memory) and is read in blocks" in own and "larger" not in notes(memory)
    assert "the files were read once before training, their target and environments twice, and" in own
    assert set(memory.summary["data"]["notes"]) <= set(blocks.summary["data"]["notes"])
    about = {name: blocks.summary["data"][name] for name in ("file", "rows", "rows_used", "missing", "options")}
    assert about == {name: memory.summary["data"][name] for name in about} and about["rows_used"] == 2998


def test_a_regression_on_a_sample(folder, monkeypatch):
    """The sample is that of the table in memory, with the units of all rows; so is what is said of it."""
    monkeypatch.setattr(families, "SEARCHED_ROWS", 2000)
    frame = read_table(folder).frame.dropna(subset="sold")
    frame["price"] = 100 + 7 * frame["shortcut"] + np.random.default_rng(0).normal(size=len(frame))
    how = {"model": "linear", "drop": ["sold"]}
    memory = fit_table(frame, "price", ["site"], **how)
    write_folder(folder.parent / "prices", frame, "site", rows=400)
    blocks = fit_table(folder.parent / "prices", "price", ["site"], memory=LITTLE, **how)
    np.testing.assert_allclose(blocks.pipeline[-1].coef_, memory.pipeline[-1].coef_, rtol=1e-6, atol=1e-6)
    rows = [[row["rows"] for row in answer.summary["environments"]] for answer in (memory, blocks)]
    assert rows[0] == rows[1] == [1000, 1000]
    for a, b in zip(memory.summary["environments"], blocks.summary["environments"], strict=True):
        assert b["chosen"]["value"] == pytest.approx(a["chosen"]["value"], rel=1e-6)
    assert "rest on 2,000 of the 2,998 rows, drawn at random from every environment" in notes(blocks)


def test_trees_read_gaps_and_categories_in_blocks(folder):
    memory, blocks = both(folder, model="trees", rounds=20)
    frame = read_table(folder).frame
    apart = abs(blocks.pipeline.predict_proba(frame) - memory.pipeline.predict_proba(frame)).max()
    assert apart < 1e-6 and blocks.summary["outcome"] == memory.summary["outcome"]


def test_where_no_checkpoint_is_written_a_note_says_so(folder, tmp_path):
    path, how = tmp_path / "c", {"objective": "erm", "rounds": 5}
    whole = fit_table(folder, "sold", ["site"], model="linear", checkpoint=path, **how)
    assert "no checkpoint (--checkpoint) was written, since the table fits into the memory" in notes(whole)
    trees = fit_table(folder, "sold", ["site"], model="trees", checkpoint=path, memory=LITTLE, **how)
    assert "no checkpoint (--checkpoint) was written, since it is not for trees" in notes(trees)
    assert not path.exists()
    written = fit_table(folder, "sold", ["site"], model="linear", checkpoint=path, memory=LITTLE, **how)
    assert path.exists() and "checkpoint" not in notes(written)


def test_a_network_learns_from_blocks(folder):
    how = {"model": "mlp", "objective": "erm", "steps": 200}
    own, whole = (fit_table(folder, "sold", ["site"], **how, memory=memory) for memory in (LITTLE, None))
    frame = read_table(folder).frame.dropna(subset="sold")
    assert (own.pipeline.predict(frame) == frame["sold"]).mean() > 0.8
    # few rows: all of them at every step, as in memory, in another order
    assert (own.pipeline.predict(frame) == whole.pipeline.predict(frame)).mean() > 0.98


def test_environments_that_are_inferred_and_other_rows(folder):
    frame = read_table(folder).frame.dropna(subset="sold").sample(200, random_state=0)
    how = {"model": "linear", "drop": ["site"], "memory": LITTLE, "test": frame}
    answer = fit_table(folder, "sold", (), ["code"], **how)
    assert answer.summary["objective"] in ("minimax-tv-l1", "erm") and answer.summary["test"]["rows"] == 200


@pytest.mark.parametrize("n", [500, 5000])
def test_the_rows_that_are_drawn_are_the_first_of_a_shuffle(n, monkeypatch):
    """As the sample of a table in memory was always drawn, in blocks of any size."""
    monkeypatch.setattr("irmtv.app.fit.sample.BLOCK", 700)
    codes = np.random.default_rng(0).choice(3, n, p=[0.7, 0.28, 0.02]).astype(np.uint8)
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(5)).numpy()
    want = [
        shuffled[codes[shuffled] == e][: max(FEWEST_OF_ENVIRONMENT, round(int((codes == e).sum()) * 3000 / n))]
        for e in range(3)
    ]
    expected = np.arange(n) if n <= 3000 else np.sort(np.concatenate(want))
    assert drawn(codes, n, 3000, 5).tolist() == expected.tolist()
    assert drawn(None, n, 3000, 5).tolist() == (np.arange(n) if n <= 3000 else np.sort(shuffled[:3000])).tolist()


def test_a_diagnosis_rests_on_the_same_sample(folder):
    summaries = []
    for memory in ("10GB", LITTLE):
        diagnosis = diagnose_table(folder, "sold", ["site"], model="linear", max_rows=500, memory=memory)
        summaries.append({key: value for key, value in diagnosis.summary.items() if key not in ("seconds", "about")})
        assert any("random sample of 500 of the 2,998 rows" in note for note in diagnosis.notes)
    assert repr(summaries[0]) == repr(summaries[1])
    with pytest.raises(TableError, match="a diagnosis of all rows needs them in memory"):
        diagnose_table(folder, "sold", ["site"], max_rows=None, memory=LITTLE)


def test_what_is_wrong_is_said_before_training(folder, tmp_path):
    frame = read_table(folder).frame
    with pytest.raises(TableError, match=r"environment must be a column of the table. Got 'sites'"):
        fit_table(folder, "sold", ["sites"], memory=LITTLE)
    write_folder(tmp_path / "one", frame[frame["site"] == "north"], "site")
    with pytest.raises(ValueError, match="environment must have two or more different labels"):
        fit_table(tmp_path / "one", "sold", ["site"], memory=LITTLE)
    many = frame.assign(sold=[f"name {i}" for i in range(len(frame))])
    write_folder(tmp_path / "many", many, "site")
    with pytest.raises(TableError, match="too many for classes"):
        fit_table(tmp_path / "many", "sold", ["site"], memory=LITTLE)


def test_small_environments_are_pooled_and_single_files_are_read_in_blocks(tmp_path):
    frame = spurious_table(1200, seed=2).drop(columns="day")
    frame.loc[:4, "site"] = "tiny"
    frame.loc[5:9, "site"] = "small"
    path = tmp_path / "one.parquet"
    frame.to_parquet(path, row_group_size=500)
    answers = both(path, model="linear")
    names = [[row["name"] for row in answer.summary["environments"]] for answer in answers]
    assert names[0] == names[1] and any("pooled" in name for name in names[0])
    assert notes(answers[0]) in notes(answers[1]) or "pooled" in notes(answers[1])
    np.testing.assert_allclose(answers[1].pipeline[-1].coef_, answers[0].pipeline[-1].coef_, rtol=1e-6, atol=1e-6)


def test_the_command(command, folder, tmp_path):
    out = tmp_path / "m.irmtv"
    options = ("--target", "sold", "-e", "site", "--model", "linear", "--memory", "1KB", "--out", out)
    ended = command("fit", folder, *options)
    assert ended.code == 0 and "read in blocks" in " ".join(ended.out.split() + ended.err.split())
    predictions = tmp_path / "p.csv"
    assert command("predict", out, folder, "--keep", "site", "--out", predictions).code == 0
    written = pd.read_csv(predictions)
    assert len(written) == 3000 and set(written["site"]) == {"north", "south"}
    assert command("evaluate", out, folder, "-e", "site").code == 0
    wrong = command("fit", folder, "--target", "sold", "-e", "site", "--memory", "much", "--out", out)
    assert wrong.code == 1 and "memory must be a size such as 2GB" in wrong.err
