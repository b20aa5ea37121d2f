"""Moved to `node.calls.subjects`."""

from bascule.node.calls.subjects import Subjects, succeeding, succeeds

__all__ = ["Subjects", "succeeding", "succeeds"]
