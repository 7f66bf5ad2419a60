"""Where Phi starts, if not at random: parameters that a caller has, checked and handed to the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean, shown


class Start:
    """Phi's parameters at step 0: one set for all runs, or one for every run."""

    def __init__(self, given: Any, settings: Sequence[Mapping[str, Any]]) -> None:
        if not isinstance(given, Mapping) or not given:
            what = "an empty mapping" if isinstance(given, Mapping) else type(given).__name__
            raise ValueError(
                "start must be a mapping from parameter names to tensors (runs, ...), such as "
                f"fitted.state()[0].parameters. Got {what}."
            )
        self.n_runs = n_runs = len(settings)
        self.parameters = {str(name): _tensor(name, value) for name, value in given.items()}
        for name, value in self.parameters.items():
            if value.ndim == 0 or len(value) not in (1, n_runs):
                raise ValueError(
                    f"start[{name!r}] must have an entry for every run, or one for all: {n_runs} or 1 along its "
                    f"first axis. Got shape {tuple(value.shape)}; for parameters of one model use value.unsqueeze(0)."
                )

        if len({s["hidden"] for s in settings}) > 1:
            raise ValueError("start goes with one network for all runs. Got runs that differ in hidden.")

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Whether these are the parameters of a network whose parameters have these shapes."""
        unknown = [name for name in self.parameters if name not in shapes]
        missing = [name for name in shapes if name not in self.parameters]
        if unknown or missing:
            wrong = f"{shown(unknown)}, which it does not have" if unknown else ""
            lacks = f"without {shown(missing)}" if missing else ""
            hint = did_you_mean(unknown[0], missing) if unknown else ""
            raise ValueError(
                f"start must name the parameters of the network, {shown(shapes)}. Got "
                f"{' and '.join(part for part in (wrong, lacks) if part)}.{hint}"
            )
        for name, shape in shapes.items():
            got = tuple(self.parameters[name].shape)
            if got[1:] != tuple(shape):
                runs = self.n_runs if got[0] == self.n_runs else 1
                raise ValueError(
                    f"start[{name!r}] must have the shape {(runs, *shape)}: the network has {tuple(shape)} for every "
                    f"run. Got {got}; take it from runs of the same network on the same features."
                )

    def key(self, run: int) -> tuple[bytes, ...]:
        """The same for runs that start at the same place, and for no others."""
        each = (value for value in self.parameters.values() if len(value) > 1)
        return tuple(value[run].numpy().tobytes() for value in each)

    def put(self, starts: Sequence[Mapping[str, Tensor]], runs: Sequence[int]) -> list[dict[str, Tensor]]:
        """In place of the random starts of these runs, each in its network's order of parameters."""
        self.check({name: tuple(value.shape) for name, value in starts[0].items()})
        each = {name: value.expand(self.n_runs, *value.shape[1:]) for name, value in self.parameters.items()}
        return [{name: each[name][run] for name in start} for start, run in zip(starts, runs, strict=True)]


def _tensor(name: Any, value: Any) -> Tensor:
    """A finite float64 copy on the CPU."""
    if not isinstance(value, (Tensor, np.ndarray)):
        raise ValueError(f"start[{name!r}] must be a tensor or an array of numbers. Got {type(value).__name__}.")
    numbers = torch.as_tensor(value).detach().cpu()
    if numbers.is_complex() or not bool(numbers.isfinite().all()):
        raise ValueError(
            f"start[{name!r}] must be finite numbers. Got NaN, infinite or complex ones; start from runs that did not "
            "diverge."
        )
    return numbers.to(torch.float64, copy=True)
