"""Where the environments come from: given labels, or a network on auxiliary variables."""

from irmtv.environments.aux_network import AuxNetwork, scale_aux

__all__ = ["AuxNetwork", "scale_aux"]
