"""A resources server of the package nemo_gym, which a test runs in an environment of its own."""

from __future__ import annotations

from unittest.mock import MagicMock

from fastapi import FastAPI, Request
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient
from pydantic import BaseModel, Field


class Begin(BaseSeedSessionRequest):
    initial_count: int


class Count(BaseModel):
    count: int


class Finished(BaseVerifyRequest):
    expected_count: int


class Adder(SimpleResourcesServer):
    """Adds up, from the row's initial count on; the expected count is right."""

    config: BaseResourcesServerConfig
    counts: dict[str, int] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/add")(self.add)
        return app

    async def seed_session(self, request: Request, body: Begin) -> BaseSeedSessionResponse:
        self.counts[request.session[SESSION_ID_KEY]] = body.initial_count
        return BaseSeedSessionResponse()

    async def add(self, request: Request, body: Count) -> Count:
        session = request.session[SESSION_ID_KEY]
        self.counts[session] += body.count
        return Count(count=self.counts[session])

    async def verify(self, request: Request, body: Finished) -> BaseVerifyResponse:
        right = self.counts[request.session[SESSION_ID_KEY]] == body.expected_count
        return BaseVerifyResponse(**body.model_dump(), reward=float(right))


config = BaseResourcesServerConfig(host="127.0.0.1", port=0, entrypoint="", name="adder")
app = Adder(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver()
