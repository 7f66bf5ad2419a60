"""Where the environments come from: given labels, or a network on auxiliary variables."""

from irmtv.environments.aux_network import AuxNetwork, AuxScaler

__all__ = ["AuxNetwork", "AuxScaler"]
