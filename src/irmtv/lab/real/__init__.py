"""Real tables whose environments are left out in turn: what is chosen without them, and what it does there.

`tables` reads and prepares, `splits` says what is unseen, `measure` trains one family of models on one split with the
statistics of `scores`, `run` does every piece of work that the folder does not have yet, `results` puts the families of
a split together, `summary` makes the tables.
"""

from irmtv.lab.real.run import RealRun, run_real
from irmtv.lab.real.summary import RealReport

__all__ = ["RealReport", "RealRun", "run_real"]
