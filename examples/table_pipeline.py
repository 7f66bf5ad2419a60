"""A mixed table, from raw columns to a model file: Pipeline, TableVectorizer, InvariantClassifierCV.

    python examples/table_pipeline.py

A made-up hospital table: two honest measurements, a ward (text) and an admission date; and the code of the scanner,
which follows the diagnosis at the hospitals of the training rows (95 % and 75 %) and turns against it at the next one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import set_config
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from skrub import TableVectorizer

import irmtv
from irmtv import InvariantClassifierCV

AGREEMENT = {"north": 0.95, "south": 0.75, "new": 0.1}  # of the scanner's code with the diagnosis


def hospital(name: str, rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    sick = rng.integers(0, 2, rows)
    code = np.where(rng.random(rows) < AGREEMENT[name], sick, 1 - sick)
    table = pd.DataFrame(
        {
            "pressure": 120 + 15 * sick + rng.normal(0, 15, rows),
            "marker": np.exp(0.8 * sick + rng.normal(0, 0.7, rows)),
            "ward": rng.choice(["A", "B", "C"], rows),
            "admitted": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365, rows), "D"),
            "scanner": np.where(code == 1, "X200", "Y7"),
            "hospital": name,
        }
    )
    return table, np.where(sick, "sick", "well")


def main() -> None:
    set_config(enable_metadata_routing=True)
    parts = [hospital("north", 2000, 1), hospital("south", 2000, 2)]
    table, y = pd.concat([p[0] for p in parts], ignore_index=True), np.concatenate([p[1] for p in parts])
    new, y_new = hospital("new", 4000, 3)
    features, rows = table.drop(columns="hospital"), new.drop(columns="hospital")

    invariant = InvariantClassifierCV(hidden=(), max_steps=1500, learning_rate=0.02, random_state=0)
    model = make_pipeline(TableVectorizer(), invariant.set_fit_request(environment=True))
    model.fit(features, y, environment=table["hospital"])
    print(model[-1].selected_["message"])

    plain = make_pipeline(TableVectorizer(), HistGradientBoostingClassifier(random_state=0)).fit(features, y)
    print(f"{'accuracy (%)':28s}{'these hospitals':>16s}{'the next one':>14s}")
    for name, fitted in (("gradient boosting", plain), ("InvariantClassifierCV", model)):
        scores = [100 * accuracy_score(t, fitted.predict(x)) for x, t in ((features, y), (rows, y_new))]
        print(f"{name:28s}{scores[0]:16.1f}{scores[1]:14.1f}")

    with tempfile.TemporaryDirectory() as folder:
        path = irmtv.save(model, Path(folder) / "model.irmtv")  # preprocessing included, no pickle
        same = (irmtv.load(path).predict(rows) == model.predict(rows)).all()
        print(f"saved ({path.stat().st_size / 1024:.0f} kB), loaded, the same predictions: {same}")


if __name__ == "__main__":
    main()
