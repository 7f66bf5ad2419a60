"""Blocks of a table have the numbers of the table in memory, bit by bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from app.io.folders import write_folder
from irmtv.app.fit.families import Networks, Trees
from irmtv.app.fit.preparation import prepare_stream
from irmtv.app.io.parquet import open_parquet
from irmtv.app.io.read import read_table
from irmtv.data.tables.columns import split_columns


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Columns of every kind, with gaps; text of few and of many different values."""
    n, rng = 900, np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "count": pd.Series(rng.integers(0, 50, n)).where(rng.random(n) > 0.1).astype("Int64"),
            "half": rng.normal(size=n).astype(np.float32),
            "far": 1e9 + rng.normal(size=n),
            "code": rng.integers(10, 14, n),
            "colour": pd.Series(rng.choice(["red", "green", "blue"], n)).where(rng.random(n) > 0.1),
            "word": [f"w{i}" for i in rng.integers(0, 60, n)],
            "day": pd.date_range("2020-01-01", periods=n, freq="h"),
            "took": pd.to_timedelta(rng.integers(0, 1000, n), unit="s"),
            "true": rng.random(n) < 0.5,
            "site": rng.choice(["north", "south", "west"], n),
            "sold": pd.Series(rng.choice(["yes", "no"], n)).where(rng.random(n) > 0.02),
        }
    )
    return write_folder(tmp_path_factory.mktemp("sales"), frame, "site", rows=110)


@pytest.mark.parametrize("family", [Networks, Trees])
def test_blocks_are_the_rows_in_memory(folder, family, monkeypatch):
    monkeypatch.setattr("irmtv.app.io.stream.BLOCK_ROWS", (10, 40))
    prepared = prepare_stream(
        open_parquet(folder),
        "sold",
        ["site"],
        [],
        memory=10**6,
        sample=lambda n_rows, *_: np.arange(0, n_rows, 2),
        categorical=["code"],
    )
    parameters = {"objective": "irm-tv-l1", "random_state": 0}
    how = {"parameters": parameters, "whole": prepared.whole(family.reads)}
    table = prepared.table(family.reads)
    if family is Networks:
        made = Networks("linear", prepared.task, table, steps=1, **how)
    else:
        pytest.importorskip("lightgbm")
        made = Trees(prepared.task, table, rounds=1, **how)
    source = prepared.stream.source(family.reads, made.all_rows)
    blocks = list(source.blocks())
    x = torch.cat([rows.x for rows in blocks])
    frame = read_table(folder).frame
    kept = split_columns(frame, target="sold", environment=["site"]).kept
    values = prepared.steps[family.reads].transform(split_columns(frame, target="sold", environment=["site"]).features)
    reader = made.all_rows.x
    expected = reader.array(values, x.numpy().dtype) if family is Networks else reader.read(values)
    assert np.array_equal(x.numpy(), expected, equal_nan=True) and len(blocks) > 3
    assert torch.cat([rows.y for rows in blocks]).tolist() == (frame["sold"].iloc[kept] == "yes").tolist()
    sites = [prepared.stream.names[code] for rows in blocks for code in rows.environment.tolist()]
    assert sites == frame["site"].iloc[kept].tolist()
    sample = made.all_rows.task.train.x
    np.testing.assert_allclose(sample.numpy(), x[::2].numpy(), rtol=1e-12)
    spans = source.spans(5, 7)
    assert 1 < len(spans) <= 5
    again = [replace(rows, x=rows.x.clone()) for span in spans for rows in span]
    assert max(map(len, again)) == 7 and len(again) > len(blocks)
    for name in ("x", "y", "environment"):
        whole = [torch.cat([getattr(rows, name).to(x.dtype) for rows in each]).nan_to_num() for each in (again, blocks)]
        assert torch.equal(*whole)
    assert torch.equal(source.block(2).x.nan_to_num(), blocks[2].x.nan_to_num())
