"""What a process of `fit_table(process_group=...)` does, for test_distributed.py; and one process alone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from torch import distributed

from irmtv.app.fit import families, fit_table


def main(folder: str, model: str, out: str) -> None:
    families.SEARCHED_ROWS = 1500  # a sample of the 6,000
    group, rank = None, 0
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
        group, rank = distributed.group.WORLD, distributed.get_rank()
    try:
        answer = fit_table(
            folder,
            "y",
            ["site"],
            model=model,
            penalty_weights=[100.0],
            folds=2,
            steps=60,
            process_group=group,
            memory="1MB",
        )
        estimator = answer.pipeline[-1]
        found = {"rows": answer.summary["data"]["rows_used"], "notes": answer.summary["data"]["notes"]}
        if model == "linear":
            found |= {"coef": estimator.coef_.tolist(), "intercept": estimator.intercept_.tolist()}
        else:
            found["parameters"] = [v.tolist() for v in estimator.predictor_.members[0].parameters.values()]
        Path(f"{out}-{rank}.json").write_text(json.dumps(found))
    finally:
        if group is not None:
            distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
