"""Several processes that fit one table: what one of them cannot read stops all, before the others read all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from irmtv.app.io import ParquetTable, TableError
from irmtv.core.messages import shown
from irmtv.core.ranks import Ranks

Result = TypeVar("Result")


def agreed(group: Any, read: Callable[[], Result]) -> Result:
    """What `read` gives here, where it gives something in all processes of the group; else one error in all of them."""
    if group is None:
        return read()
    ranks = Ranks.of(group)
    result, wrong = None, None
    try:
        result = read()
    except Exception as error:  # told to the others, and raised below
        wrong = error
    told = ranks.tell(None if wrong is None else str(wrong) or type(wrong).__name__)
    refused = [
        f"process {rank} of {len(told)} cannot read it: {why}" for rank, why in enumerate(told) if why is not None
    ]
    if refused:
        raise TableError(
            f"all processes must read the same table. Got an error: {shown(refused, 1, form=str)}"
        ) from wrong
    return cast(Result, result)


def check_same_table(group: Any, table: ParquetTable) -> None:
    """Raise in all processes where one of them has another table."""
    kinds = {name: str(kind) for name, kind in table.types.items()}
    told = Ranks.of(group).tell({"columns": kinds, "row groups": [list(rows) for rows in table.groups]})
    for rank, other in enumerate(told):
        first, own = told[0]["columns"], other["columns"]
        differ = [name for name in dict.fromkeys([*first, *own]) if first.get(name) != own.get(name)]
        if differ:
            each = [
                f"{name} is {own.get(name, 'not there')}, and {first.get(name, 'not there')} in 0" for name in differ
            ]
            raise _different(f"in process {rank} {shown(each, form=str)}")
        if other != told[0]:
            rows = [f"{sum(map(sum, one['row groups'])):,} rows in {len(one['row groups'])} files" for one in told]
            raise _different(f"{rows[rank]} in process {rank} and {rows[0]} in 0, or other row groups")


def _different(got: str) -> TableError:
    return TableError(
        f"all processes must read the same files. Got differences: {got}. Give every process the same folder, on every "
        "machine."
    )
