"""Durable message streams over NATS that speak the Liftbridge protocol."""

__version__ = "0.1.0"
