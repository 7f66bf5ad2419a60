"""Run by torchrun: `killed_fit.py FOLDER fit ...`: the command, whose rank 1 is killed in the middle of its first life.

For test_distributed.py. Every life writes how many passes its training began.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from irmtv.app.fit import families
from irmtv.app.io.block_source import TableBlocks
from irmtv.cli import run

KILLED_AT = 2  # the pass, after whose first rows it is killed


def main(folder: Path) -> None:
    families.SEARCHED_ROWS = 1500  # a sample of the 6,000
    rank, life = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    spans = TableBlocks.spans

    def counted(self: TableBlocks, most: int, rows: int):
        passes = spans(self, most, rows)
        (folder / f"passes-{life}-{rank}").write_text(str(self.passes))
        if (rank, life, self.passes) == (1, 0, KILLED_AT):
            next(passes[0])
            os.kill(os.getpid(), signal.SIGKILL)
        return passes

    TableBlocks.spans = counted
    run()


if __name__ == "__main__":
    main(Path(sys.argv.pop(1)))
