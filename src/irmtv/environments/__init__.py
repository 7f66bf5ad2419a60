"""Where the environments come from: given labels, a network on auxiliary variables, mixtures of either."""

from irmtv.environments.affine import Affine
from irmtv.environments.aux_network import AuxNetwork, AuxScaler

__all__ = ["Affine", "AuxNetwork", "AuxScaler"]
