"""Two tables to try the command line with: `sales.csv`, from two periods, and `elsewhere.csv`, from four other places.

Five columns say whether something is sold; ten follow the sales in the first period nearly always, in the second less,
and elsewhere more or less or the other way round (the paper's simulation).

    python examples/sales_tables.py
    irmtv fit sales.csv --target sold --environment period --out sales.irmtv
    irmtv evaluate sales.irmtv elsewhere.csv --environment period
"""

from __future__ import annotations

import pandas as pd

from irmtv import Rows
from irmtv.datasets import make_simulation


def as_table(rows: Rows) -> pd.DataFrame:
    table = pd.DataFrame(rows.x.numpy(), columns=[f"x{i}" for i in range(1, 16)])
    table["period"] = [str(rows.names[e]) for e in rows.environment.tolist()]
    table["sold"] = ["yes" if y else "no" for y in rows.y.tolist()]
    return table


def main() -> None:
    task = make_simulation(4000, (0.999, 0.7), 0.8, random_state=0)
    for name, rows in (("sales.csv", task.train), ("elsewhere.csv", task.test)):
        as_table(rows).to_csv(name, index=False)
        print(f"written: {name}, {len(rows):,} rows")


if __name__ == "__main__":
    main()
