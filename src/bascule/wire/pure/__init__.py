"""The pure-Python twin of the kernels, one noun per module. `wire._pure` gathers the sixteen functions."""
