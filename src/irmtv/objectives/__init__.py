"""One small file per method. `OBJECTIVES` is the registry: everything in it is tested by the contracts.

Another package adds its own by an entry point in the group ``irmtv.objectives`` whose value is an
:class:`Objective`. A sum of penalties has a name, too: ``OBJECTIVES["irm-tv-l1+vrex"]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points

from irmtv.core.messages import did_you_mean
from irmtv.objectives.base import HyperParameter, Objective, Penalty
from irmtv.objectives.build import combine, penalised
from irmtv.objectives.eiil import EIIL
from irmtv.objectives.eills import EILLS
from irmtv.objectives.erm import ERM
from irmtv.objectives.groupdro import GROUPDRO
from irmtv.objectives.hrm import HRM
from irmtv.objectives.irm_tv_l1 import IRM_TV_L1
from irmtv.objectives.irm_tv_l2 import IRM_TV_L2
from irmtv.objectives.irmv1 import IRMV1
from irmtv.objectives.lff import LFF
from irmtv.objectives.minimax_tv import MINIMAX_TV_L1, MINIMAX_TV_L2, ZIN
from irmtv.objectives.mm_rex import MM_REX
from irmtv.objectives.ood_tv import OOD_TV_IRM_L1, OOD_TV_IRM_L2, OOD_TV_MINIMAX_L1, OOD_TV_MINIMAX_L2
from irmtv.objectives.sparse_irm import SPARSE_IRM
from irmtv.objectives.tiva import TIVA
from irmtv.objectives.vrex import VREX

BUILT_IN = (
    ERM,
    IRMV1,
    IRM_TV_L2,
    IRM_TV_L1,
    VREX,
    MM_REX,
    GROUPDRO,
    SPARSE_IRM,
    EILLS,
    EIIL,
    LFF,
    HRM,
    MINIMAX_TV_L2,
    ZIN,
    TIVA,
    MINIMAX_TV_L1,
    OOD_TV_IRM_L2,
    OOD_TV_IRM_L1,
    OOD_TV_MINIMAX_L2,
    OOD_TV_MINIMAX_L1,
)


class Registry(Mapping[str, Objective]):
    """Objectives by name. Outside plug-ins are looked for at the first use, not at import."""

    def __init__(self, built_in: tuple[Objective, ...]) -> None:
        self._known = {o.name: o for o in built_in}
        self._plugins_loaded = False

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        plugins: dict[str, Objective] = {}
        for point in entry_points(group="irmtv.objectives"):
            try:
                plugin = point.load()
            except Exception as error:
                raise ImportError(
                    f"the entry point {point.name!r} ({point.value}) in group 'irmtv.objectives' cannot be loaded: "
                    f"{error}. Repair or uninstall the package that brings it."
                ) from error
            if not isinstance(plugin, Objective):
                raise TypeError(
                    f"the entry point {point.name!r} ({point.value}) in group 'irmtv.objectives' must be an "
                    f"irmtv.objectives.Objective. Got {type(plugin).__name__}."
                )
            if plugin.name in self._known or plugin.name in plugins:
                raise ValueError(
                    f"the entry point {point.name!r} ({point.value}) names its objective {plugin.name!r}, which is "
                    "taken; give it another name."
                )
            plugins[plugin.name] = plugin
        # only now: a plug-in that cannot be used raises at every use, not at the first alone
        self._known |= plugins
        self._plugins_loaded = True

    def __getitem__(self, name: str) -> Objective:
        if not isinstance(name, str):
            raise UnknownObjectiveError(f"objective must be a name or an Objective. Got {type(name).__name__}.")
        self._load_plugins()
        parts = [part.strip() for part in name.split("+")]
        for part in parts:
            if part not in self._known:
                raise UnknownObjectiveError(
                    f"objective must be one of {sorted(self._known)}, or a sum such as 'irm-tv-l1+vrex'. "
                    f"Got {part!r}.{did_you_mean(part, self._known)}"
                )
        objectives = tuple(self._known[part] for part in parts)
        return objectives[0] if len(objectives) == 1 else combine(objectives)

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(self._known)

    def __len__(self) -> int:
        self._load_plugins()
        return len(self._known)


class UnknownObjectiveError(KeyError, ValueError):
    """No objective of that name. A KeyError, so that the registry is a mapping; a ValueError to users."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr


OBJECTIVES: Mapping[str, Objective] = Registry(BUILT_IN)

__all__ = ["OBJECTIVES", "HyperParameter", "Objective", "Penalty", "combine", "penalised"]
