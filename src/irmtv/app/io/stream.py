"""A table that is larger than the memory: one pass learns what it holds, one draws a sample, and training reads all.

The search and everything that is said of it use the sample. Units, categories, classes and environments are those of
all rows, and the choice is trained on all rows, block by block.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.pipeline import Pipeline

from irmtv.app.io.block_source import TableBlocks
from irmtv.app.io.parquet import ParquetTable, with_rows
from irmtv.app.io.parquet_blocks import ParquetBlocks
from irmtv.app.io.parquet_types import word_of
from irmtv.core.read_ahead import read_ahead
from irmtv.data.categories import CategoricalColumns
from irmtv.data.environments import as_labels, check_label_rows, encode_labels, pool_labels
from irmtv.data.moments import Moments
from irmtv.data.scaling import Scaler
from irmtv.data.tables.columns import Columns, roles_of
from irmtv.data.tables.kinds import as_text
from irmtv.data.tables.passes import FirstPass, LearnedTable
from irmtv.data.tables.steps import table_steps
from irmtv.data.tables.summaries import MOST_LEVELS
from irmtv.data.training import TrainingData, WholeRows

Ints = npt.NDArray[np.integer]
Progress = Callable[[float], None]
Reading = Literal["numbers", "gaps and categories"]  # how a family reads features
BLOCK_SHARE = 32  # the part of the memory that a block may take as it is read: there are several, in several forms
BLOCK_ROWS = (1_000, 1 << 15)
BLOCKS_EACH = 4  # of a process, at least, so that all have about as many rows
NUMBERS = ("numbers", "true and false")
LEVEL_BYTES, FEWEST_LEVELS = 200, 10_000  # of a distinct text; how many are counted however small the memory is


Sample = Callable[["LearnedTable", "Environments | None"], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Environments:
    """The environments of all rows that are kept."""

    labels: pd.Series  # (P,) by place, before small ones are pooled
    places: Ints  # (N,)
    names: tuple[Any, ...] = ()  # after pooling; () where training does not look at them
    pooled: Ints | None = None  # (P,) codes into names

    @property
    def codes(self) -> Ints | None:
        """(N,) codes into names."""
        return None if self.pooled is None else self.pooled.astype(np.min_scalar_type(len(self.names)))[self.places]


@dataclass
class Stream:
    """All rows of a table, and a sample of them in memory."""

    blocks: ParquetBlocks
    learned: LearnedTable
    kept: list[int]  # rows of every block that are kept
    sampled: npt.NDArray[np.int64]  # positions among the rows that are kept
    columns: Columns  # of the sample
    codes: Ints | None  # (N,) environments
    names: tuple[Any, ...]
    categorical: Sequence[str]
    y: Scaler | None = None
    classes: npt.NDArray[Any] | None = None
    steps: dict[Reading, Pipeline] = field(default_factory=dict)
    scalers: dict[Reading, Scaler] = field(default_factory=dict)
    passes: int = 0  # over all rows, before training
    processes: int = 1  # that share the blocks
    seconds: float = 0.0  # that training on all rows took

    def fitted_steps(self, reading: Reading) -> Pipeline:
        """The preprocessing, learned from all rows."""
        if reading not in self.steps:
            self.steps[reading] = learned_steps(self.learned, self.categorical, reading)
        return self.steps[reading]

    def whole(self, reading: Reading) -> WholeRows:
        """What the sample has of all rows."""
        x: Scaler | CategoricalColumns
        x = self.scalers[reading] if reading == "numbers" else _categories(self.fitted_steps(reading))
        return WholeRows(x, self.y, self.classes, self.names)

    def source(self, reading: Reading, data: TrainingData[Any], progress: Progress | None = None) -> TableBlocks:
        """All rows as blocks, in the units of `data`, which has the sample."""
        roles = self.learned.roles
        used = [str(roles.target), *roles.aux, *self.learned.columns]
        if self.learned.n_kept < self.learned.n_rows:
            used += roles.environment  # their gaps
        codes = None if data.task.train.environment is None else self.codes
        blocks = self.blocks.select(used)
        return TableBlocks(blocks, self.learned, self.kept, codes, self.fitted_steps(reading), data, progress)


def learned_steps(learned: LearnedTable, categorical: Sequence[str], reading: Reading) -> Pipeline:
    """A fitted preprocessing."""
    steps = table_steps(categorical, for_trees=reading == "gaps and categories")
    for _, step in steps:
        step.fit_summaries(learned.columns)
    return Pipeline(steps)


def _categories(steps: Pipeline) -> CategoricalColumns:
    numbers = steps[-1]
    words = numbers.words()
    return CategoricalColumns(tuple(tuple(words[n]) if n in words else None for n in numbers.outputs()))


def open_stream(
    table: ParquetTable,
    target: str,
    environment: Sequence[str],
    aux: Sequence[str],
    *,
    options: Mapping[str, Any],
    memory: int,
    sample: Sample,
    keep_labels: bool = True,
    min_rows: int = 10,
    needed: bool = False,
    scaled: bool = True,
    processes: int = 1,
    progress: Progress | None = None,
) -> Stream:
    """Two passes over a table: what it holds, and the rows of a sample.

    Parameters
    ----------
    table, target, environment, aux : the table, and columns by their role.
    options : drop, features, categorical.
    memory : bytes; blocks are as large as it allows.
    sample : which rows to keep in memory, given what is known of all.
    keep_labels : whether environments serve training; then those with fewer than `min_rows` rows are pooled.
    needed : whether there must be two.
    scaled : whether units of all rows are needed, as models other than trees do.
    processes : how many are to share the blocks.
    progress : called with the share of the passes that is done.
    """
    with_rows(table)
    roles = roles_of(table.names, target=target, environment=environment, aux=aux, **options)
    blocks = ParquetBlocks.of(table, rows_of_block(table, memory, processes))
    used = [name for name in table.names if name not in set(roles.unused)]
    blocks = blocks.select(used)
    texts = max(1, sum(word_of(table.types[name]) not in NUMBERS for name in used))
    most = min(MOST_LEVELS, max(FEWEST_LEVELS, memory // (LEVEL_BYTES * texts)))
    first = FirstPass(roles, options.get("categorical", ()), most)
    report = _half_of(progress, table.n_rows)
    kept = [report(0, first.add(frame), len(frame)) for frame in read_ahead(blocks.frames())]
    learned = first.learned()
    places = None
    if learned.labels is not None and learned.places is not None:
        places = Environments(learned.labels, learned.places)
        places = _pooled(places, min_rows, needed) if keep_labels else places
        learned = replace(learned, places=None)  # not twice in memory
    positions = sample(learned, places)
    stream = Stream(
        blocks,
        learned,
        kept,
        positions,
        _no_columns(),
        None if places is None else places.codes,
        () if places is None else places.names,
        options.get("categorical", ()),
    )
    _draw(stream, places, scaled, lambda rows: report(1, 0, rows))
    stream.passes, stream.processes = 2, processes
    return stream


def rows_of_block(table: ParquetTable, memory: int, processes: int = 1) -> int:
    """As many as a part of the memory holds; of several processes each has some blocks."""
    each = max(1, table.bytes_in_memory() // max(1, table.n_rows))
    low, high = BLOCK_ROWS
    if processes > 1:
        low = high = max(1, min(high, table.n_rows // (BLOCKS_EACH * processes)))
    return int(min(high, max(low, memory // (BLOCK_SHARE * each))))


def _half_of(progress: Progress | None, n_rows: int) -> Callable[[int, int, int], int]:
    """Reports what was read in two passes; gives its second argument back."""
    done = [0, 0]

    def report(number: int, result: int, rows: int) -> int:
        done[number] += rows
        if progress is not None:
            progress((number + done[number] / n_rows) / 2)
        return result

    return report


def _pooled(places: Environments, min_rows: int, needed: bool) -> Environments:
    """With the checks and warnings of environments in memory."""
    codes, names = encode_labels(as_labels(places.labels), "environment")
    rows = np.bincount(places.places, minlength=len(codes))
    sizes = np.bincount(codes, weights=rows, minlength=len(names)).astype(np.int64)
    check_label_rows(sizes, names, min_rows, needed)
    lookup, kept, _ = pool_labels(sizes, names, min_rows)
    return replace(places, names=kept, pooled=lookup[codes])


def _no_columns() -> Columns:
    return Columns(pd.DataFrame(), None, None, None, (), np.zeros(0, np.int64), (), {})


def _draw(stream: Stream, places: Environments | None, scaled: bool, report: Callable[[int], int]) -> None:
    """The second pass: the rows of the sample, and the units of all rows as numbers."""
    moments, parts = Moments(), list[Any]()
    learned = stream.learned
    steps = stream.fitted_steps("numbers") if scaled else None
    start = place = 0
    for frame, n in zip(read_ahead(stream.blocks.frames()), stream.kept, strict=True):
        piece = learned.read(frame)
        if steps is not None and n:
            moments.add(steps.transform(piece.features))
        end = int(np.searchsorted(stream.sampled, start + n))
        own = stream.sampled[place:end] - start
        if len(own):
            aux = None if piece.aux is None else piece.aux.iloc[own]
            parts.append((piece.features.iloc[own].apply(as_text), piece.y.iloc[own], aux))
        start, place = start + n, end
        report(len(frame))
    if scaled:
        stream.scalers["numbers"] = moments.scaler()
    features, y, aux = (_joined(list(each)) for each in zip(*parts, strict=True))
    labels = None
    if places is not None:
        labels = places.labels.iloc[places.places[stream.sampled]].reset_index(drop=True)
    stream.columns = Columns(
        features, y, labels, aux, learned.aux_is_date, stream.sampled, learned.notes, learned.missing
    )


def _joined(parts: list[Any]) -> Any:
    return None if parts[0] is None else pd.concat(parts, ignore_index=True)


def caught(call: Callable[[], Stream]) -> tuple[Stream, list[str]]:
    """A stream, and the warnings on the way as notes."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        stream = call()
    return stream, list(dict.fromkeys(str(warning.message) for warning in warned))
