"""Two baselines of scikit-learn on Adult, on the paper's split: what an invariant method has to beat.

    IRMTV_DATA=folder python examples/adult_baselines.py        # without IRMTV_DATA the files are downloaded

Five splits, accuracy in percent, mean and standard deviation over the splits:

                                               all test rows    worst subgroup
    LogisticRegression, 59 columns              83.24 ± 0.09      80.80 ± 0.10  (Non-Black Male)
    HistGradientBoosting, 12 raw columns        84.48 ± 0.16      82.20 ± 0.21  (Non-Black Male)

The paper has 82.16 / 79.55 for ERM and 83.33 / 80.95 for Minimax-TV-l1, over ten splits of its own.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from irmtv.datasets import load_adult
from irmtv.metrics import EnvironmentTable, evaluate_environments


def logistic(split: int) -> EnvironmentTable:
    """Logistic regression on the paper's 59 columns."""
    task = load_adult(split)
    assert task.test is not None
    model = LogisticRegression(max_iter=1000).fit(task.train.x.numpy(), task.train.y.numpy())
    logits = model.decision_function(task.test.x.numpy())
    return evaluate_environments(logits, task.test.y, task.test.environment, names=task.test.names)


def boosting(split: int) -> EnvironmentTable:
    """Boosted trees on the raw columns."""
    data = load_adult(split, as_frame=True)
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    text = make_column_selector(dtype_exclude="number")
    columns = make_column_transformer((encoder, text), remainder="passthrough", verbose_feature_names_out=False)
    trees = HistGradientBoostingClassifier(categorical_features=text(data.X_train), random_state=0)
    model = make_pipeline(columns.set_output(transform="pandas"), trees).fit(data.X_train, data.y_train)
    return evaluate_environments(model.decision_function(data.X_test), data.y_test, data.environment_test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5, help="at least 2")
    splits = range(parser.parse_args().splits)
    print(f"{'':40}{'all test rows':>16}{'worst subgroup':>18}")
    for label, baseline in (
        ("LogisticRegression, 59 columns", logistic),
        ("HistGradientBoosting, 12 raw columns", boosting),
    ):
        tables = [baseline(split) for split in splits]
        overall = 100 * np.array([float(t.overall[0]) for t in tables])
        worst = 100 * np.array([float(t.worst[0]) for t in tables])
        who = ", ".join(sorted({str(t.worst_environment[0]) for t in tables}))
        shown = [f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" for values in (overall, worst)]
        print(f"{label:40}{shown[0]:>16}{shown[1]:>18}  ({who})")


if __name__ == "__main__":
    main()
