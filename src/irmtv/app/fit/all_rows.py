"""The choice is trained on all rows: in memory, or block by block, by one process or by several.

What is said of that, and of the rows that are not used, are notes of the summary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from irmtv.app.fit.families import Family, Networks
from irmtv.app.fit.preparation import Prepared
from irmtv.app.fit.summary_parts import Searches
from irmtv.app.io.block_source import TableBlocks
from irmtv.app.io.memory import give_back_memory
from irmtv.core.messages import shown
from irmtv.core.progress_bar import ProgressBar
from irmtv.core.ranks import Ranks


def train_choice(prepared: Prepared, searches: Searches, bar: ProgressBar | None, together: Mapping[str, Any]) -> None:
    """The choice on all rows, of which every process of a group reads its own."""
    family, stream = searches.family, prepared.stream
    why = "the table fits into the memory" if stream is None else "it is not for trees"
    if together["checkpoint"] is not None and (stream is None or not isinstance(family, Networks)):
        prepared.data["notes"].append(f"no checkpoint (--checkpoint) was written, since {why}")
    if stream is None:
        searches.estimator.fit_choice(family.all_rows, searches.search)
        return
    began = time.perf_counter()
    give_back_memory()  # rows of folds, which the search has left
    source = stream.source(family.reads, family.all_rows, reading_reports(bar, "training on all rows"))
    if together["process_group"] is not None:
        source = _own_share(source, Ranks.of(together["process_group"]))
    if not isinstance(family, Networks):
        together = {"checkpoint": None, "process_group": None}  # trees have neither
    searches.estimator.fit_choice_on(source, family.all_rows, searches.search, **together)
    stream.seconds = time.perf_counter() - began
    single = source.blocks_read / max(1, len(source.rows_of_blocks))
    beside = f", and {single:.1f} times in blocks drawn at random" if single else ""
    prepared.data["notes"].append(
        "the files were read once before training, their target and environments twice, and "
        f"{source.passes} times by it{beside}"
    )


def _own_share(source: TableBlocks, ranks: Ranks) -> TableBlocks:
    """The blocks of this process, where all of the group have cut one table in the same way."""
    told = ranks.tell(source.cuts)
    if any(one != told[0] for one in told):
        tables = shown([f"{sum(one):,} rows in {len(one)} blocks" for one in told], form=str)
        raise ValueError(
            f"all processes must read the same files. Got {tables}. Give every process the same "
            "folder, on every machine, and the same options."
        )
    return source.share(ranks.rank, ranks.size)


def reading_reports(bar: ProgressBar | None, what: str) -> Callable[[float], None] | None:
    """Shows how much of the rows was read, where training does not say how far it is."""
    return None if bar is None else lambda share: bar.rename(f"{what}, {100 * share:.0f} %")


def about_rows(family: Family, prepared: Prepared) -> None:
    """Notes on what of the rows is not used."""
    data = prepared.data
    objective, task = family.all_rows.objective, family.all_rows.task
    if data["aux"] and objective.infers is None:
        given = task.train.environment is not None and len(task.train.names) > 1
        why = "environments are given" if given else f"objective {objective.name!r} infers none"
        data["notes"].append(f"aux ({', '.join(data['aux'])}) is not used, since {why}, and is no feature either")
    n = len(family.rows.task.train)
    if prepared.stream is not None:
        drawn = "all" if n == data["rows_used"] else f"{n:,} of the {data['rows_used']:,}"
        where = "" if n == data["rows_used"] else ", drawn at random from every environment"
        processes = prepared.stream.processes
        why = "larger than the memory (--memory)" if processes == 1 else f"shared by {processes} processes"
        data["notes"].append(
            f"the table is {why} and is read in blocks: scores, comparisons and the page rest on {drawn} rows{where}; "
            "the model is trained on all"
        )
    elif family.rows is not family.all_rows:
        data["notes"].append(
            f"the path was compared on {len(family.rows.task.train):,} rows, drawn at random from every environment; "
            "the model is trained on all"
        )
