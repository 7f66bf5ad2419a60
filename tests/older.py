"""Arguments of scikit-learn that its oldest supported version does not have."""

from __future__ import annotations

from inspect import signature

from sklearn.preprocessing import KBinsDiscretizer
from sklearn.utils.estimator_checks import parametrize_with_checks


def known(function, **arguments):
    """Those of the arguments that the function has."""
    return {name: value for name, value in arguments.items() if name in signature(function).parameters}


STRICT = known(parametrize_with_checks, xfail_strict=True)  # before, checks that are to fail do not run
AVERAGED = known(KBinsDiscretizer, quantile_method="averaged_inverted_cdf")
