"""The attacks on the python tool's sandbox: one table for the tests and the benchmark of the tools."""

from __future__ import annotations

from tests.envs.sandbox.attacks.attack import BREACH, MARKER, Attack
from tests.envs.sandbox.attacks.escapes import ESCAPES
from tests.envs.sandbox.attacks.files import FILES
from tests.envs.sandbox.attacks.links_and_network import LINKS_AND_NETWORK
from tests.envs.sandbox.attacks.poison import POISON
from tests.envs.sandbox.attacks.processes_and_disk import PROCESSES_AND_DISK
from tests.envs.sandbox.attacks.replies import REPLIES
from tests.envs.sandbox.attacks.signals import SIGNALS
from tests.envs.sandbox.attacks.survivors import SURVIVORS
from tests.envs.sandbox.attacks.time_and_memory import TIME_AND_MEMORY

#: Name -> attack.
ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attacks in (
        *(TIME_AND_MEMORY, PROCESSES_AND_DISK, REPLIES, FILES, LINKS_AND_NETWORK, SIGNALS, ESCAPES, SURVIVORS),
        POISON,
    )
    for attack in attacks
}

__all__ = ["ATTACKS", "BREACH", "MARKER", "Attack"]
