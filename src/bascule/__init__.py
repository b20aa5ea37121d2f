"""Durable message streams over NATS that speak the Liftbridge protocol."""

import os

__version__ = "0.1.0"
PURE_KERNELS = os.environ.get("BASCULE_KERNELS") == "pure"
"""Read here, once, so that nothing below touches the environment (`wire.kernels`)."""
