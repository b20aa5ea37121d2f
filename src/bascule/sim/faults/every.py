"""All kinds of faults: whoever imports this has them registered, in this order."""

from bascule.sim.faults import damage, disks, members, network, processes, tail

DEFINED_IN = (damage, disks, members, network, processes, tail)
