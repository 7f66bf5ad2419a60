"""What the records of a split say together, against counts and means made by hand."""

from __future__ import annotations

import pytest

from irmtv.lab.real.results import coverage, split_results
from irmtv.lab.real.run import RealRun
from irmtv.lab.real.summary import RealReport
from lab.real.small import baselines, record


def scores(value, **by_environment):
    return {"score": value, "by_environment": by_environment or {"a": value}, "balanced_accuracy": 0.5, "log_loss": 1.0}


def report(*records, left_out=(), failed=()):
    return RealReport(RealRun(list(records), ["classes: made up."], list(left_out), list(failed), 0))


def test_the_family_that_did_better_where_it_was_left_out_is_picked():
    linear = record(left_out={"plain": 0.7, "chosen": 0.9}, plain=scores(0.6), chosen=scores(0.9))
    trees = record("trees", left_out={"plain": 0.8, "chosen": 0.8}, plain=scores(0.65), chosen=scores(0.65))
    (result,) = split_results([linear, trees, baselines()])
    assert result.picked == "trees" and result.choice["chosen"]["score"] == 0.65  # by plain, not by chosen
    assert result.oracle == 0.9
    assert (result.score("linear"), result.score("trees"), result.baseline("trees")) == (0.6, 0.65, 0.6)


def test_less_error_is_better_and_the_simpler_is_picked_where_both_are_alike():
    numbers = {"metric": "rmse", "table": "numbers"}
    (lower,) = split_results(
        [record(left_out={"plain": 0.5}, **numbers), record("trees", left_out={"plain": 0.4}, **numbers)]
    )
    assert lower.picked == "trees"
    (alike,) = split_results([record("trees"), record()])
    assert alike.picked == "linear"


def test_two_environments_have_held_out_rows_alone():
    few = {"left_out": None, "expected": None}
    (result,) = split_results([record(held_out={"plain": 0.7}, **few), record("trees", held_out={"plain": 0.8}, **few)])
    assert result.picked == "trees" and result.intervals("expected") == []


def test_intervals_of_every_unseen_environment():
    found = record(chosen=scores(0.7, b=0.72, c=0.6), expected={"low": 0.7, "high": 0.8, "coverage": 0.9})
    (result,) = split_results([found])
    inside, outside = result.intervals("expected")
    assert (inside.covered, inside.score, inside.width) == (True, pytest.approx(0.1), pytest.approx(0.1))
    assert (outside.covered, outside.score) == (False, pytest.approx(0.1 + 20 * 0.1))
    assert coverage([result], "expected") == (1, 2)
    assert result.worst == 0.6


def several_splits():
    changed = {"kept_plain": False, "outcome": "invariant-found", "se": 0.01}
    return [
        record(split="a", gain=0.0),
        record(split="b", gain=0.02, **changed),
        record(split="c", gain=0.005, **changed),
        record(split="d", gain=-0.015, **changed),
        record(split="e", gain=-0.03, **changed, chosen=scores(0.2, e=0.2)),
    ]


def test_how_often_a_choice_helped_did_nothing_and_harmed():
    numbers = report(*several_splits()).overall()
    counts = {"helped": 1, "kept plain": 1, "no difference": 1, "harmed": 1, "harmed by 2 se": 1}
    assert (numbers["splits"], numbers["verdicts"], numbers["harmed"]) == (5, counts, 2)
    assert numbers["coverage"]["expected"] == {"covered": 4, "of": 5}
    assert numbers["tables_where_chosen_beats_both"] is None  # there are no trees


def test_harm_in_the_family_that_is_not_picked_is_shown():
    harm = {"kept_plain": False, "outcome": "invariant-found", "gain": -0.3, "se": 0.03, "left_out": {"plain": 0.1}}
    kept = record("trees", "b", left_out={"plain": 0.1})
    made = report(record(), record("trees", **harm), record(split="b"), kept)
    numbers = made.overall()
    assert numbers["verdicts"]["kept plain"] == 2 and numbers["harmed"] == 0
    assert numbers["verdicts_by_family"]["trees"] == {"harmed by 2 se": 1, "kept plain": 1}
    (table,) = [table for table in made.tables() if "not picked" in table.title]
    assert table.rows == [["classes: a", "trees", "found", "-30.0", "3.0", "harmed by 2 se"]]
    assert table.notes == ("ERM was kept in the other 1 of 2.",)
    assert all("not picked" not in table.title for table in report(record(), kept | {"split": "a"}).tables())


def test_means_of_a_table_and_whether_the_choice_beats_both():
    good = [
        *(record(split=s, plain=scores(p), chosen=scores(0.8)) for s, p in (("a", 0.5), ("b", 0.7))),
        *(record("trees", s, left_out={"plain": 0.1}, plain=scores(0.7)) for s in "ab"),
        *(baselines(s) for s in "ab"),
    ]
    made = report(*good)
    of_table = made.numbers()["tables"]["classes"]
    assert (of_table["linear"], of_table["chosen"]) == (pytest.approx(0.6), pytest.approx(0.8))
    assert of_table["logistic_or_ridge"] == pytest.approx(0.7) and of_table["hist_gb"] == pytest.approx(0.6)
    assert of_table["chosen_beats_both"] and made.overall()["tables_where_chosen_beats_both"] == ["classes"]
    worse = [r | {"plain": scores(0.81)} if r["family"] == "trees" else r for r in good]
    assert report(*worse).overall()["tables_where_chosen_beats_both"] == []


def test_seeds_that_give_the_same_outcome():
    outcomes = ["erm-kept"] * 4 + ["invariant-found"]
    stable = [record(seed=k, outcome=o) for k, o in enumerate(outcomes)]
    unstable = [record(split="b", seed=k, outcome=o) for k, o in enumerate(["none-found", *outcomes[1:]])]
    made = report(*stable, *unstable)
    first, second = made.stability()
    assert (first["same"], first["stable"], second["same"], second["stable"]) == (4, True, 3, False)
    assert len(made.results) == 2 and len(made.table()) == 10  # tables are of the first seed
    assert "1 of 2 splits" in made.tables()[-1].notes[0]


def test_tables_and_files(tmp_path):
    heart = [record(split="va", table="heart"), baselines("va", "heart")]
    made = report(*several_splits(), *heart, left_out=["table 'gas': no file"], failed=["x: killed"])
    texts = {table.title: table for table in made.tables()}
    assert texts["What the choice did"].rows[4][3:] == ["-3.0", "1.0", "harmed by 2 se"]
    outside = ["70.0–90.0*", "1020.0"]  # 20 points wide, and 20 times 50 points
    assert texts["What was expected in a new environment"].rows[4][1:] == ["20.0", *outside, *outside]
    assert texts["Balanced accuracy in %, and log loss"].rows[0][:2] == ["heart: va", "75.0, 0.500"]
    notes = " ".join(texts["Score on the unseen rows"].notes)
    assert "left out: table 'gas': no file" in notes and "failed, x: killed" in notes
    assert [path.name for path in made.write(tmp_path)] == ["real.md", "real.csv", "real.json"]
    assert report().tables() == []


def test_how_much_longer_a_fit_takes_for_left_out_environments():
    times = [(2.0, 1.0), (3.0, 1.0), (4.0, 3.0)]
    records = [
        record(split=split, fit_seconds=fit, left_out_seconds=left_out)
        for split, (fit, left_out) in zip("abc", times, strict=True)
    ]
    made = report(*records, record(split="d"))  # of an older version
    assert made.overall()["times_without_left_out"] == {"median": 2.0, "most": 4.0}
    said = next(row for table in made.tables() for row in table.rows if row[0].startswith("time of a fit"))
    assert said[1] == "2.0, 4.0"
    assert report(record()).overall()["times_without_left_out"] == {}
