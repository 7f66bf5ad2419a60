"""Run by torchrun: `each_its_own.py FOLDER`: every rank fits FOLDER/table-RANK and writes what is wrong.

For test_distributed.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch import distributed

from irmtv.app.fit import fit_table
from irmtv.app.io import TableError
from irmtv.app.io.parquet_blocks import ParquetBlocks


def main(folder: Path) -> None:
    rank, passes = os.environ["RANK"], []
    tables = ParquetBlocks.tables
    ParquetBlocks.tables = lambda self: passes.append(1) or tables(self)
    distributed.init_process_group("gloo")
    try:
        fit_table(folder / f"table-{rank}", "y", ["site"], model="linear", process_group=distributed.group.WORLD)
    except TableError as error:
        (folder / f"said-{rank}").write_text(str(error).replace("table-1", "table"))
    (folder / f"passes-{rank}").write_text(str(len(passes)))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
