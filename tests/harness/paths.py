"""Where things are, however deep the folder of a test is."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The top of the repository."""
SCENARIOS = ROOT / "tests" / "scenarios"
VECTORS = ROOT / "tests" / "vectors"
