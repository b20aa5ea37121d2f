"""Fuzzing: what is thrown at the parsers, and what must hold whatever it is. `tools.fuzz` runs it."""
