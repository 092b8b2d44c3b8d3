"""Attacks on the sandbox: names of what an attacker does, and how the sandbox must answer."""

from tests.envs.sandbox.attacks.attack import BREACH, MARKER, Attack
from tests.envs.sandbox.attacks.intrusions import INTRUSIONS
from tests.envs.sandbox.attacks.leftovers import LEFTOVERS
from tests.envs.sandbox.attacks.limits import LIMITS
from tests.envs.sandbox.attacks.refusals import REFUSALS

#: Name -> attack.
ATTACKS: dict[str, Attack] = {attack.name: attack for attack in (*REFUSALS, *LIMITS, *INTRUSIONS, *LEFTOVERS)}

__all__ = ["ATTACKS", "BREACH", "MARKER", "Attack"]
