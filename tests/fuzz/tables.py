"""Mutated tables: a small one that is spoilt in one of many ways, by a seed; and Parquet files of any types."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fuzz.mutate import NUMBERS, TEXTS, Rng, changed_bytes, changed_tree, flipped, one


def base(n: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=n).round(3),
            "rooms": rng.integers(1, 6, n),
            "kind": rng.choice(["flat", "house, small", "hut"], n),
            "built": [f"20{k:02d}-0{1 + k % 9}-11" for k in rng.integers(10, 24, n)],
            "site": rng.choice(["north", "south"], n),
        }
    )
    frame.loc[::9, "size"] = np.nan
    frame["sold"] = np.where(frame["size"].fillna(0) + rng.normal(size=n) > 0, "yes", "no")
    return frame


BASE = base().to_csv(index=False, lineterminator="\n").encode()
LINES = BASE.splitlines(keepends=True)
HEADER, ROWS = LINES[0], LINES[1:]


def joined(header: bytes, rows: list[bytes]) -> bytes:
    return header + b"".join(rows)


def changed(rng: Rng, change: Callable[[bytes], bytes], share: float = 0.1) -> bytes:
    """Some of the rows, each changed."""
    return joined(HEADER, [change(row) if rng.random() < share else row for row in ROWS])


def with_column(rng: Rng, name: str, values: Any) -> bytes:
    frame = base()
    frame[name] = values(len(frame), rng)
    return frame.to_csv(index=False).encode()


def field(row: bytes, at: int, value: bytes) -> bytes:
    """A row with one of its first fields replaced."""
    cells = row.split(b",")
    cells[at] = value
    return b",".join(cells)


WORDS = b"NA||?|null|-|n.a.|1e400|inf|-inf|nan|1,5|0x1F|1_000|\xc2\xa0".split(b"|")

# name -> (rng) -> bytes; a name that ends in .gz or .parquet is written to such a file
MUTATIONS: dict[str, Callable[[Rng], bytes]] = {
    "nothing at all": lambda r: b"" if r.random() < 0.5 else b"\n" * int(r.integers(1, 9)),
    "header only": lambda r: HEADER if r.random() < 0.5 else HEADER.rstrip(),
    "no header": lambda r: b"".join(ROWS),
    "few rows": lambda r: joined(HEADER, ROWS[: int(r.integers(1, 12))]),
    "one column": lambda r: b"\n".join(row.split(b",")[0] for row in LINES),
    "duplicate columns": lambda r: HEADER.replace(b"rooms", r.choice([b"size", b" sold "])) + b"".join(ROWS),
    "no target": lambda r: BASE.replace(b"sold", r.choice([b"Sold", b"price", b"", b"so\xe2\x82\xacld"])),
    "no environment": lambda r: BASE.replace(b"site", r.choice([b"Site", b"si te", b"site2", b"\xf0\x9f\x8f\xa0"])),
    "constant target": lambda r: BASE.replace(b"yes", b"no"),
    "constant but for missing": lambda r: BASE.replace(b"yes", b""),
    "new classes": lambda r: changed(r, lambda row: row.replace(b"yes", b"maybe")),
    "target of all texts": lambda r: with_column(r, "sold", lambda n, g: [f"t{i}" for i in range(n)]),
    "one environment": lambda r: BASE.replace(b"south", b"north"),
    "every row its own environment": lambda r: with_column(r, "site", lambda n, g: [f"s{i}" for i in range(n)]),
    "no environment known": lambda r: BASE.replace(b"south", b"").replace(b"north", b"NA"),
    "open quote": lambda r: changed(r, lambda row: row.replace(b"hut", b'"hut').replace(b"flat", b'"flat'), 0.05),
    "quotes anywhere": lambda r: changed(r, lambda row: row[: (k := int(r.integers(0, len(row))))] + b'"' + row[k:]),
    "text after quotes": lambda r: changed(r, lambda row: row.replace(b"hut", b'"hut" b')),
    "rows too short": lambda r: changed(r, lambda row: row.rsplit(b",", int(r.integers(1, 3)))[0] + b"\n"),
    "rows too long": lambda r: changed(r, lambda row: row.rstrip() + b"," * int(r.integers(1, 4)) + b"\n"),
    "latin-1": lambda r: changed(r, lambda row: row.replace(b"hut", b"h\xfctte").replace(b"flat", b"fl\xe4t")),
    "two encodings": lambda r: changed(
        r, lambda row: row.replace(b"hut", r.choice([b"h\xfctte", "hütte".encode()])), 1
    ),
    "utf-16": lambda r: BASE.decode().encode(r.choice(["utf-16", "utf-16-le", "utf-32"])),
    "NUL": lambda r: changed(r, lambda row: row.replace(b"h", b"\0")),
    "control characters": lambda r: changed(r, lambda row: row.replace(b"h", bytes([int(r.integers(1, 32))]))),
    "bits flipped": lambda r: flipped(BASE, r, int(r.integers(1, 60))),
    "cut anywhere": lambda r: BASE[: int(r.integers(1, len(BASE)))],
    "lines dropped and doubled": lambda r: joined(HEADER, [row for row in ROWS for _ in range(r.integers(0, 3))]),
    "lines in another order": lambda r: b"".join(LINES[i] for i in r.permutation(len(LINES))),
    "another separator": lambda r: BASE.replace(b",", r.choice([b"|", b";", b"\t", b" ", b":", b",,"])),
    "separators mixed": lambda r: changed(r, lambda row: row.replace(b",", r.choice([b";", b"\t"])), 0.5),
    "huge cells": lambda r: changed(r, lambda row: row.replace(b"hut", b"hut" * int(r.integers(1, 60_000))), 0.02),
    "infinities": lambda r: changed(r, lambda row: field(row, 0, r.choice([b"inf", b"-Infinity", b"1e39", b"1e999"]))),
    "words among numbers": lambda r: changed(r, lambda row: field(row, int(r.integers(0, 2)), r.choice(WORDS)), 0.3),
    "all missing": lambda r: joined(HEADER, [field(row, int(r.integers(0, 2)), b"") for row in ROWS]),
    "nothing but missing": lambda r: joined(HEADER, [b",,,,north,yes\n", b",,,,south,no\n"] * 60),
    "strange names": lambda r: BASE.replace(
        b"rooms", r.choice([b"=cmd()", b"[red]", b"a\tb", b'"a""b"', b"$", b"__x__"])
    ),
    "dates in other formats": lambda r: changed(r, lambda row: row.replace(b"-0", r.choice([b"/0", b".0", b" "])), 0.5),
    "gz cut.gz": lambda r: (g := gzip.compress(BASE, mtime=0))[: int(r.integers(0, len(g)))],
    "gz spoilt.gz": lambda r: flipped(gzip.compress(BASE, mtime=0), r, int(r.integers(1, 20))),
    "no gz.gz": lambda r: BASE,
    "no parquet.parquet": lambda r: BASE if r.random() < 0.5 else b"PAR1" + BASE + b"PAR1",
    "parquet spoilt.parquet": lambda r: flipped(parquet(), r, int(r.integers(1, 40))),
    "parquet cut.parquet": lambda r: parquet()[: int(r.integers(0, len(parquet())))],
}


def parquet() -> bytes:
    file = io.BytesIO()
    base().to_parquet(file)
    return file.getvalue()


# --- more of them, for `make fuzz` ------------------------------------------------------------------------


def any_table(seed: int, folder: Path) -> tuple[Path, str]:
    """The table of a seed: one of the mutations, often with bytes changed on top, under one of several names."""
    rng = np.random.default_rng([22, seed])
    if rng.random() < 0.15:
        path = folder / one(rng, ("data.parquet", "data.pq"))
        path.write_bytes(odd_parquet(rng))
        return path, "Parquet of any types"
    name = one(rng, list(MUTATIONS))
    data = MUTATIONS[name](rng)
    kind = name.rpartition(".")[2]
    times = int(rng.integers(0, 4))
    for _ in range(times):
        data = changed_bytes(data, rng)
    if kind == "parquet":
        path = folder / "data.parquet"
    elif kind == "gz":
        path = folder / one(rng, ("data.csv.gz", "data.tsv.gz", "data.csv"))
    else:
        path = folder / one(rng, ("data.csv", "data.csv", "data.tsv", "data.txt", "data.csv.gz"))
        data = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
    path.write_bytes(data)
    return path, f"{name}, {times} changes, as {path.name}"


def odd_parquet(rng: Rng) -> bytes:
    """Columns of the usual names with types and values that nobody expects; sometimes with wrong notes of pandas."""
    n = int(rng.integers(0, 60))
    columns = {name: _odd_column(rng, n) for name in ("size", "rooms", "kind", "built", "site", "sold")}
    usual = pa.Table.from_pandas(base(max(n, 1)), preserve_index=False).slice(0, n)
    for name in columns:
        if rng.random() < 0.6:
            columns[name] = usual.column(name)
    if rng.random() < 0.3:
        columns[one(rng, (*TEXTS[:12], "__index_level_0__"))] = _odd_column(rng, n)
    table = pa.table(list(columns.values()), names=[name.replace("\ud800", "?") for name in columns])
    if rng.random() < 0.3:
        notes = changed_tree(json.loads(usual.schema.metadata[b"pandas"]), rng, 2)
        table = table.replace_schema_metadata({b"pandas": json.dumps(notes).encode()})
    file = io.BytesIO()
    try:
        pq.write_table(table, file, compression=one(rng, ("snappy", "none", "gzip", "zstd")))
    except pa.ArrowInvalid:  # seconds are stored as milliseconds, which cannot hold all of them
        return parquet()
    return file.getvalue()


def _odd_column(rng: Rng, n: int) -> pa.Array:
    whole = rng.integers(-(2**62), 2**62, n) // one(rng, (1, 1000, 10**9))
    texts = [one(rng, TEXTS).replace("\ud800", "?") for _ in range(n)]
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: pa.array(
            whole, pa.timestamp(one(rng, ("s", "ms", "us", "ns")), one(rng, (None, "UTC", "Europe/Oslo")))
        ),
        lambda: pa.array(rng.integers(-(2**31), 2**31 - 1, n).astype("int32"), pa.date32()),
        lambda: pa.array(rng.integers(0, 86_400_000, n).astype("int32"), pa.time32("ms")),
        lambda: pa.array(whole, pa.duration(one(rng, ("s", "ns")))),
        lambda: pa.array(whole.astype("uint64"), pa.uint64()),
        lambda: pa.array(rng.normal(size=n).astype("float16"), pa.float16()),
        lambda: pa.array([float(one(rng, NUMBERS)) for _ in range(n)], pa.float64()),
        lambda: pa.nulls(n, one(rng, (pa.null(), pa.int8(), pa.string(), pa.bool_(), pa.date32()))),
        lambda: pa.array(texts, one(rng, (pa.string(), pa.large_string()))),
        lambda: pa.array(texts).dictionary_encode(),
        lambda: pa.array([[1]] * n, pa.list_(pa.int8())),
        lambda: pa.array([{"a": 1}] * n, pa.struct([("a", pa.int8())])),
        lambda: pa.array([b"\xff"] * n, one(rng, (pa.binary(), pa.binary(1)))),
        lambda: pa.array(rng.random(n) < 0.5),
        lambda: pa.array([int(k) for k in whole], pa.decimal128(38, one(rng, (0, 10)))),
    )
    made = one(rng, kinds)()
    gaps = rng.random(n) < one(rng, (0.0, 0.3))
    return pc.if_else(pa.array(gaps), pa.scalar(None, made.type), made) if _may_lack(made.type) else made


def _may_lack(kind: pa.DataType) -> bool:
    """Whether Arrow puts gaps into it."""
    return not pa.types.is_nested(kind) and not pa.types.is_dictionary(kind)
