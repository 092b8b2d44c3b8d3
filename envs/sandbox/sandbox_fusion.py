"""A SandboxFusion server (https://github.com/bytedance/SandboxFusion), by its HTTP interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_arpo.envs.errors import ToolError, TransientToolError, is_transient
from rllib_arpo.envs.sandbox.backend import Backend, Limits, remote_program, remote_reply
from rllib_arpo.envs.sandbox.fork_server import CallStatus, WorkerReply
from rllib_arpo.envs.support.per_loop import http_client

#: Seconds that the server may take beyond a call's own limit: it may queue.
_GRACE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class SandboxFusionBackend(Backend):
    """Sends each program to `/run_code`. The request limits time and memory; only the server can limit files.

    Attributes:
        url: of the server, e.g. "http://10.0.0.5:8080".
    """

    url: str = ""

    def check(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError("The back-end sandbox_fusion needs backend_options={'url': 'http://...'}, its server.")

    async def run(self, code: str, history: Sequence[str], limits: Limits) -> WorkerReply:
        time_s = (1 + len(history)) * limits.time_s
        body = await self._post(
            {
                "code": remote_program(code, history),
                "language": "python",
                "run_timeout": time_s,
                "memory_limit_MB": limits.memory_mb,
            }
        )
        try:
            return self._reply(body)
        except (AttributeError, KeyError, TypeError) as error:
            raise self._odd() from error

    async def _post(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        import httpx

        url = f"{self.url.rstrip('/')}/run_code"
        try:
            response = await http_client().post(url, json=request, timeout=request["run_timeout"] + _GRACE_S)
        except httpx.TransportError as error:
            raise TransientToolError(f"The sandbox at {self.url} did not answer ({type(error).__name__}).") from error
        if is_transient(response.status_code):
            raise TransientToolError(f"The sandbox at {self.url} answered with HTTP {response.status_code}.")
        if response.status_code != 200:
            raise ToolError(f"The sandbox at {self.url} answered with HTTP {response.status_code}.")
        try:
            return response.json()
        except ValueError as error:
            raise self._odd() from error

    def _odd(self) -> TransientToolError:
        """The error for replies that do not come from SandboxFusion, but for instance from a proxy in front of it."""
        return TransientToolError(f"The sandbox at {self.url} sent a reply that is not understood.")

    def _reply(self, body: Mapping[str, Any]) -> WorkerReply:
        result = body.get("run_result")
        if result is None or result["status"] == "Error":
            raise TransientToolError(f"The sandbox at {self.url} failed: {body.get('message') or body.get('status')}.")
        output = (result.get("stdout") or "") + (result.get("stderr") or "")
        if result["status"] == "TimeLimitExceeded":
            return WorkerReply(CallStatus.TIMEOUT, output)
        return remote_reply(result["return_code"], output)
