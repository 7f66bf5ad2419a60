"""Where the environments come from: given labels, a network on auxiliary variables, mixtures of either."""

from irmtv.objectives.environments.affine import Affine
from irmtv.objectives.environments.aux_network import AuxNetwork, AuxScaler

__all__ = ["Affine", "AuxNetwork", "AuxScaler"]
