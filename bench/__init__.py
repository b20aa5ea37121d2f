"""Benchmarks, `python -m bench`: Bascule beside NATS JetStream, and kernels beside their pure twins."""
