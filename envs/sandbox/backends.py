"""The back-ends of the python tool by their names, and the one on this machine: interpreters inside bubblewrap."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rllib_arpo.envs.sandbox import bubblewrap
from rllib_arpo.envs.sandbox.backend import Backend, Limits
from rllib_arpo.envs.sandbox.fork_server import ForkServer, WorkerReply, shared_server
from rllib_arpo.envs.sandbox.packages import DEFAULT, import_names
from rllib_arpo.envs.sandbox.sandbox_fusion import SandboxFusionBackend

#: Code that runs once per preloaded module, so that no call pays for the module's first use.
WARM_UPS = {
    "numpy": "numpy.linalg.solve(numpy.eye(2), numpy.ones(2)); numpy.random.default_rng(0).normal()",
    "sympy": (
        "x = sympy.Symbol('x'); sympy.solve(x**2 - 2, x); sympy.simplify(sympy.sin(x)**2 + sympy.cos(x)**2);"
        " sympy.integrate('x*exp(x)', x); sympy.factorint(360); str(sympy.sqrt(8) / 3 + sympy.Rational(1, 2)).strip();"
        " sympy.latex(x); sympy.N(sympy.pi, 20); sympy.diff(sympy.log(x), x); sympy.limit(sympy.sin(x) / x, x, 0)"
    ),
}


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """The settings of the interpreters on this machine.

    Attributes:
        packages: what the code can import beside the standard library: these, and what they require.
        preload: modules that are imported once, so that importing them in a call costs nothing.
        interpreters: how many dispatchers fork calls at once; None: one for each CPU.
        unsafe: without bubblewrap: the code can do whatever this process's user can.
    """

    packages: tuple[str, ...] = DEFAULT
    preload: tuple[str, ...] = ("math", "numpy", "sympy")
    interpreters: int | None = None
    unsafe: bool = False


@dataclass(frozen=True, kw_only=True)
class LocalBackend(LocalOptions, Backend):
    """One server for all tools of this process with the same configuration."""

    def check(self) -> None:
        if self.unsafe:
            return
        bubblewrap.check_available()
        importable = import_names(self.packages) | sys.stdlib_module_names
        for name in self.preload:
            if name.partition(".")[0] not in importable:
                raise ValueError(f"The python tool's preload has {name!r}, which is not among its packages.")

    def prepare(self) -> None:
        self.server().start()

    async def run(self, code: str, history: Sequence[str], limits: Limits) -> WorkerReply:
        return await self.server().run(code, limits.time_s, limits.memory_mb, limits.disk_mb, history)

    def server(self) -> ForkServer:
        lines = [f"import {name}\n{WARM_UPS.get(name, '')}" for name in self.preload]
        return shared_server("\n".join(lines), not self.unsafe, self.interpreters, self.packages)


#: Name -> back-end; its fields are `backend_options` of the tool, except for "local", whose fields are the tool's own.
BACKENDS: dict[str, type[Backend]] = {
    "local": LocalBackend,
    "sandbox_fusion": SandboxFusionBackend,
}
