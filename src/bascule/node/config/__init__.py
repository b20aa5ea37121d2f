"""The broker's configuration: `load` it, then read `Config`."""

from bascule.node.config.tree import Config, load
from bascule.node.config.values import Address

__all__ = ["Address", "Config", "load"]
