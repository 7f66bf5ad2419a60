"""What the oldest supported versions of scikit-learn and pandas do not have."""

from __future__ import annotations

from inspect import signature

import pandas as pd
from sklearn.preprocessing import KBinsDiscretizer
from sklearn.utils.estimator_checks import parametrize_with_checks


def known(function, **arguments):
    """Those of the arguments that the function has."""
    return {name: value for name, value in arguments.items() if name in signature(function).parameters}


STRICT = known(parametrize_with_checks, xfail_strict=True)  # before, checks that are to fail do not run
AVERAGED = known(KBinsDiscretizer, quantile_method="averaged_inverted_cdf")
ZONE = "Europe/Paris" if int(pd.__version__.split(".")[0]) > 2 else "UTC"  # that can be stored
