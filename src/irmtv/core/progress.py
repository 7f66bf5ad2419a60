"""How far a training is: what it reports, and whoever shows it reads."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True)
class Progress:
    """How far a call of `train` is; handed to the `progress` callback now and then."""

    step: int  # of the present chunk
    steps: int
    runs_done: int  # runs whose training is finished
    runs_now: int  # runs training now
    runs: int
    seconds: float

    @property
    def share(self) -> float:
        """Share of all the work that is done, 0 to 1."""
        return (self.runs_done + self.runs_now * self.step / self.steps) / self.runs
