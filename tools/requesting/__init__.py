"""Random requests to every method that a broker serves. `tools.requests` runs it."""
