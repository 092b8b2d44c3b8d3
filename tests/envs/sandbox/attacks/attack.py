"""The interface of an attack."""

from __future__ import annotations

from dataclasses import dataclass

#: What an attack's code, or the call after it, prints when it has the effect that it must not have.
BREACH = "BREACH"
#: A text that no process but the owner of the sandbox knows; `Baits` hides it in places that a call must not reach.
MARKER = "MARKER-" + "3f9c2a77d1"


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. It has failed if nothing printed `BREACH`, nothing outside was touched and `blocked` matches.

    Attributes:
        kind: the class of attacks that it belongs to.
        code: what is run; @NAME@ stands for the field `name` of `Baits`.
        blocked: a regular expression for the whole reply, "status: output": how the sandbox answered. It also makes
            sure that the attack was really made, and did not end in a mistake of its own.
        then: run after it in a call of its own, which must print "clean".
        control: whether the attack can be made without a fence, where it must succeed: proof that it can.
        time_limit_s: of the attack's call.
    """

    name: str
    kind: str
    code: str
    blocked: str
    then: str = ""
    control: bool = False
    time_limit_s: float = 20.0
