"""The registry of back-ends of the python tool."""

from __future__ import annotations

from rllib_arpo.envs.sandbox.backend import Backend
from rllib_arpo.envs.sandbox.e2b import E2BBackend
from rllib_arpo.envs.sandbox.local import LocalBackend
from rllib_arpo.envs.sandbox.sandbox_fusion import SandboxFusionBackend

#: Name -> back-end; its fields are `backend_options` of the tool, except for "local", whose fields are the tool's own.
BACKENDS: dict[str, type[Backend]] = {
    "local": LocalBackend,
    "sandbox_fusion": SandboxFusionBackend,
    "e2b": E2BBackend,
}
