"""A table that is larger than the memory: one pass learns what it holds and draws a sample, and training reads all.

The search and everything that is said of it use the sample. Units, categories, classes and environments are those of
all rows, and the choice is trained on all rows, block by block.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.pipeline import Pipeline

from irmtv.app.io.block_source import TableBlocks
from irmtv.app.io.parquet import ParquetTable, with_rows
from irmtv.app.io.parquet_blocks import ParquetBlocks, block_frame
from irmtv.app.io.parquet_types import as_numbers, is_number, word_of
from irmtv.core.cores import InOrder, side_by_side
from irmtv.core.read_ahead import read_ahead
from irmtv.data.categories import CategoricalColumns
from irmtv.data.environments import as_labels, check_label_rows, encode_labels, pool_labels, rows_of_codes
from irmtv.data.scaling import Scaler
from irmtv.data.tables.columns import Columns, Roles, roles_of
from irmtv.data.tables.kinds import as_frame, as_text
from irmtv.data.tables.passes import FeatureTallies, FirstPass, LearnedTable, whole_rows
from irmtv.data.tables.steps import table_steps
from irmtv.data.tables.summaries import MOST_LEVELS
from irmtv.data.training import TrainingData, WholeRows

Ints = npt.NDArray[np.integer]
Progress = Callable[[float], None]
Reading = Literal["numbers", "gaps and categories"]  # how a family reads features
BLOCK_SHARE = 32  # the part of the memory that a block may take as it is read: there are several, in several forms
BLOCK_ROWS, PIECE_ROWS = (1_000, 1 << 15), 1 << 17
BLOCKS_EACH = 4  # of a process, at least, so that all have about as many rows
MOST_SPANS = 32  # of a table, which are read side by side
FIRST_SHARE = 0.1  # of the time of two passes that the first takes, over few columns
NUMBERS = ("numbers", "true and false")
LEVEL_BYTES, FEWEST_LEVELS = 600, 10_000  # of a distinct text in several spans; how many are counted in any case


# kept rows, features and environments -> positions of the rows to keep in memory, in rising order
Sample = Callable[[int, int, "Environments | None"], npt.NDArray[np.int64]]


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
    processes: int = 1  # that share the blocks
    seconds: float = 0.0  # that training on all rows took

    def fitted_steps(self, reading: Reading) -> Pipeline:
        """The preprocessing, learned from all rows."""
        if reading not in self.steps:
            self.steps[reading] = learned_steps(self.learned, self.categorical, reading)
        return self.steps[reading]

    def whole(self, reading: Reading) -> WholeRows:
        """What the sample has of all rows."""
        steps = self.fitted_steps(reading)
        x: Scaler | CategoricalColumns
        x = steps[-1].scaler(self.learned.columns) if reading == "numbers" else _categories(steps)
        return WholeRows(x, self.y, self.classes, self.names)

    def source(self, reading: Reading, data: TrainingData[Any], progress: Progress | None = None) -> TableBlocks:
        """All rows as blocks, in the units of `data`, which has the sample."""
        roles = self.learned.roles
        used = [str(roles.target), *roles.aux, *self.learned.columns]
        if self.learned.rows.n_kept < self.learned.rows.n_rows:
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
    processes: int = 1,
    progress: Progress | None = None,
) -> Stream:
    """What a table holds, and the rows of a sample: two passes, the first one over target, environment and aux alone.

    Parameters
    ----------
    table, target, environment, aux : the table, and columns by their role.
    options : drop, features, categorical.
    memory : bytes; blocks are as large as it allows.
    sample : which rows to keep in memory.
    keep_labels : whether environments serve training; then those with fewer than `min_rows` rows are pooled.
    needed : whether there must be two.
    processes : how many are to share the blocks.
    progress : called with the share of the passes that is done.
    """
    with_rows(table)
    roles = roles_of(table.names, target=target, environment=environment, aux=aux, **options)
    blocks = ParquetBlocks.of(table, *rows_of_block(table, memory, processes))
    used = [name for name in table.names if name not in set(roles.unused)]
    blocks = blocks.select(used)
    texts = max(1, sum(word_of(table.types[name]) not in NUMBERS for name in used))
    most = min(MOST_LEVELS, max(FEWEST_LEVELS, memory // (LEVEL_BYTES * texts)))
    first = FirstPass(roles, options.get("categorical", ()), most)
    report = _Reading(progress, table.n_rows)
    kept, sizes = list[int](), blocks.sizes()
    for begin, end, piece in read_ahead(blocks.select(roles.taken).pieces(0, len(blocks))):
        part = first.add_rows(block_frame(piece))
        until = np.searchsorted(part.index, np.cumsum(sizes[begin:end]))  # the index has places in the piece
        kept += np.diff(until, prepend=0).tolist()
        report(0, piece.num_rows)
    rows, places = first.rows(), None
    if rows.labels is not None and rows.places is not None:
        places = Environments(rows.labels, rows.places)
        places = _pooled(places, min_rows, needed) if keep_labels else places
        rows = replace(rows, places=None)  # not twice in memory
    positions = sample(rows.n_kept, len(used) - len(roles.taken), places)
    drawn = _features(blocks, first.features, kept, positions, roles, lambda n: report(1, n))
    learned = first.learned(rows)
    piece, labels = learned.read(drawn), None
    if places is not None:
        labels = places.labels.iloc[places.places[positions]].reset_index(drop=True)
    columns = Columns(
        piece.features, piece.y, labels, piece.aux, rows.aux_is_date, positions, learned.notes, learned.missing
    )
    return Stream(
        blocks,
        learned,
        kept,
        positions,
        columns,
        None if places is None else places.codes,
        () if places is None else places.names,
        options.get("categorical", ()),
        processes=processes,
    )


def rows_of_block(table: ParquetTable, memory: int, processes: int = 1) -> tuple[int, int]:
    """As many as a part of the memory holds, and as many as a pass reads together; of several processes each has some
    blocks."""
    room = memory // (BLOCK_SHARE * max(1, table.bytes_in_memory() // max(1, table.n_rows)))
    low, high = BLOCK_ROWS
    if processes > 1:
        low = high = max(1, min(high, table.n_rows // (BLOCKS_EACH * processes)))
    return int(min(high, max(low, room))), int(min(PIECE_ROWS, room))


class _Reading:
    """Reports how much of two passes was read, from any thread."""

    def __init__(self, progress: Progress | None, n_rows: int) -> None:
        self._progress, self._done, self._lock = progress, [0, 0], Lock()
        self._shares = FIRST_SHARE / n_rows, (1 - FIRST_SHARE) / n_rows

    def __call__(self, number: int, rows: int) -> None:
        with self._lock:
            self._done[number] += rows
            share = sum(a * b for a, b in zip(self._done, self._shares, strict=True))
        if self._progress is not None:
            self._progress(share)


def _pooled(places: Environments, min_rows: int, needed: bool) -> Environments:
    """With the checks and warnings of environments in memory."""
    codes, names = encode_labels(as_labels(places.labels), "environment")
    rows = rows_of_codes(places.places, len(codes))
    sizes = np.bincount(codes, weights=rows, minlength=len(names)).astype(np.int64)
    check_label_rows(sizes, names, min_rows, needed)
    lookup, kept, _ = pool_labels(sizes, names, min_rows)
    return replace(places, names=kept, pooled=lookup[codes])


def _features(
    blocks: ParquetBlocks,
    features: FeatureTallies,
    kept: Sequence[int],
    sampled: npt.NDArray[np.int64],
    roles: Roles,
    report: Callable[[int], None],
) -> pd.DataFrame:
    """One pass, in spans side by side: adds up all features, and gives the rows of the sample, with target and aux.

    `kept` are the rows of every block in which nothing is missing that must be there.
    """
    table, starts = blocks.table, np.concatenate([[0], np.cumsum(kept)])
    own = [name for name in table.names if name not in set(roles.taken)]
    numbers = [name for name in own if is_number(table.types[name]) and name not in features.categorical]
    gaps = sum(kept) < table.n_rows  # of environments, too
    beside = [str(roles.target), *roles.aux, *(roles.environment if gaps else [])]
    blocks = blocks.select([*own, *beside])
    drawn, unwanted = list[pd.DataFrame](), Event()

    def take(found: tuple[FeatureTallies, list[pd.DataFrame]]) -> None:
        features.join(found[0])
        drawn.extend(found[1])

    ready = InOrder(take)

    def work(span: tuple[int, tuple[int, int]]) -> None:
        number, (first, last) = span
        tallies, parts = FeatureTallies(features.categorical, features.most_levels), list[pd.DataFrame]()
        for begin, end, piece in blocks.pieces(first, last):
            if unwanted.is_set():
                return
            arrays = {name: as_numbers(piece.column(name)) for name in numbers}
            frame = block_frame(piece.drop_columns(numbers))
            whole = starts[end] - starts[begin] == len(frame)
            index = None if whole else whole_rows(frame, roles.taken)[0]
            if index is not None:
                frame, arrays = frame.iloc[index], {name: values[index] for name, values in arrays.items()}
            others = as_frame(frame[[name for name in own if name not in arrays]])
            tallies.add({name: arrays[name] if name in arrays else others[name] for name in own})
            place, until = np.searchsorted(sampled, starts[[begin, end]])
            some = sampled[place:until] - starts[begin]
            if len(some):
                texts = {name: as_text(column).array for name, column in frame.iloc[some].items()}
                parts.append(pd.DataFrame({**{name: values[some] for name, values in arrays.items()}, **texts}))
            report(piece.num_rows)
        ready.put(number, (tallies, parts))

    side_by_side(work, list(enumerate(blocks.spans(MOST_SPANS))), stop=unwanted.set)
    return pd.concat(drawn, ignore_index=True)


def caught(call: Callable[[], Stream]) -> tuple[Stream, list[str]]:
    """A stream, and the warnings on the way as notes."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        stream = call()
    return stream, list(dict.fromkeys(str(warning.message) for warning in warned))
