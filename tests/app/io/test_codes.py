"""Which columns of numbers may be codes: all rows count, though a few rows tell most columns."""

from __future__ import annotations

import numpy as np
import pandas as pd

from irmtv.app.io.codes import HEAD, about_codes

N = 3 * HEAD


def test_all_rows_count():
    few = np.arange(N) % 4
    frame = pd.DataFrame(
        {
            "code": few,
            "with gaps": pd.Series(few, dtype=float).mask(np.arange(N) < HEAD + 5),
            "late": np.where(np.arange(N) < HEAD, 1, few),
            "many in the end": np.where(np.arange(N) < HEAD, few, np.arange(N)),
            "not whole in the end": np.where(np.arange(N) < N - 1, few, 0.5),
            "many": np.arange(N),
            "two": np.arange(N) % 2,
            "truth": few > 1,
            "text": "a",
            "said": few,
        }
    )
    (note,) = about_codes(frame, ["said"])
    assert "code (4), with gaps (4), late (4)." in note
    assert about_codes(frame[["many", "two"]], []) == []
    assert about_codes(frame[["code"]][:39], []) == []  # ten rows of each, at least
