"""The interface of an attack."""

from dataclasses import dataclass

#: What an attack's code, or the call after it, prints when it has the effect that it must not have.
BREACH = "BREACH"
#: A text that no process but the owner of the sandbox knows; `Baits` hides it in places that a call must not reach.
MARKER = "MARKER-" + "3f9c2a77d1"

_ATTEMPTS = """
import ctypes, fcntl, os, resource, socket

libc = ctypes.CDLL(None, use_errno=True)
machine = os.uname().machine
buffer = ctypes.create_string_buffer(b"\\x80", 256)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 64)
for attempt in ({attempts},):
    try:
        if attempt() != -1:
            print("BREACH")
    except (OSError, ValueError):
        pass
print("blocked")
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. It has failed if nothing printed `BREACH`, nothing outside was touched and `blocked` matches.

    Attributes:
        code: what is run; @NAME@ stands for the field `name` of `Baits`.
        blocked: a regular expression for the whole reply, "status: output": how the sandbox answered. It also makes
            sure that the attack was really made, and did not end in a mistake of its own.
        then: run after it in a call of its own, which must print "clean".
        control: whether the attack can be made without a fence, where it must succeed: proof that it can.
        time_limit_s: of the attack's call.
    """

    name: str
    code: str
    blocked: str
    then: str = ""
    control: bool = False
    time_limit_s: float = 20.0


def raises(name: str, code: str, error: str, control: bool = False) -> Attack:
    """An attack that must end in an exception; `error`: a regular expression for it."""
    return Attack(name, f'{code}\nprint("BREACH")', f"error: .*({error}).*", control=control)


def refused(name: str, *attempts: str, control: bool = False) -> Attack:
    """An attack by expressions, each of which must raise an error or, as a call of the C library, return -1."""
    code = _ATTEMPTS.format(attempts=", ".join(f"lambda: {attempt}" for attempt in attempts))
    return Attack(name, code, "ok: blocked", control=control)


def system_calls(name: str, x86_64: tuple[int, ...], aarch64: tuple[int, ...], arguments: str) -> Attack:
    """An attack by raw system calls: their numbers on each machine."""
    numbers = {"x86_64": x86_64, "aarch64": aarch64}
    return refused(name, f"max(libc.syscall(number, {arguments}) for number in {numbers}[machine])")
