"""All kinds of faults: those of every file in this folder, in the order of the files' names and of their definitions in
each. A seed draws by that order, so it must not depend on who imports what first.
"""

from importlib import import_module
from pkgutil import iter_modules

from bascule.sim import faults
from bascule.sim.faults.kinds import REGISTERED, Family, Kind

for module in iter_modules(faults.__path__):
    import_module(f"{faults.__name__}.{module.name}")

KINDS: dict[str, Kind] = dict(sorted(REGISTERED.items(), key=lambda item: item[1].work.__module__))


def families(brokers: int) -> list[Family]:
    """Those that can happen in a cluster of so many brokers."""
    return list(dict.fromkeys(kind.family for kind in KINDS.values() if brokers > 1 or not kind.several))
