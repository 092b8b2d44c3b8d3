"""A client of a language model behind an OpenAI-compatible endpoint, for judges and for agents that summarise."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rllib_arpo.envs.errors import ToolError, TransientToolError
from rllib_arpo.envs.support.cache import ResultCache
from rllib_arpo.envs.support.per_loop import PerLoop
from rllib_arpo.envs.support.texts import valid_unicode
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.redaction import without_secrets


class UnreadReply(ToolError):
    """The model answered, but not with what was asked for; nothing is cached."""


@dataclass(frozen=True, kw_only=True)
class ChatClient:
    """Asks `model` at `base_url`; with a cache it asks equal questions once.

    Attributes:
        base_url: the endpoint's address, up to and with "/v1".
        model: its name there.
        api_key_variable: the environment variable that holds the key; an endpoint that needs none accepts any text.
        temperature, max_tokens: what every request asks for; None is not sent: some models for reasoning take neither.
        timeout_s: seconds of one request.
        max_attempts: requests until one succeeds (429, 5xx and lost connections are repeated with growing waits).
        cache_path: a sqlite file for the answers; None: no cache.
    """

    base_url: str
    model: str
    api_key_variable: str = "OPENAI_API_KEY"
    temperature: float | None = 0.0
    max_tokens: int | None = 512
    timeout_s: float = 60.0
    max_attempts: int = 3
    cache_path: str | None = None

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url must begin with http:// or https://, which {self.address!r} does not.")
        for name in ("max_tokens", "timeout_s", "max_attempts"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0, not {value}.")

    @property
    def address(self) -> str:
        """`base_url` as errors show it."""
        return without_secrets(self.base_url)

    async def complete(
        self, messages: Sequence[dict[str, str]], is_readable: Callable[[str], bool] | None = None
    ) -> str:
        """The text of the model's answer to `messages` ({"role", "content"}).

        Args:
            is_readable: whether an answer says what was asked for; None: any text does, also one cut at `max_tokens`.

        Raises:
            TransientToolError: the endpoint cannot be reached, or is busy, after all attempts.
            UnreadReply: the answer was cut, or is not readable.
            ToolError: the endpoint refuses the request, or its answer has no text; nothing is cached then.
        """
        if self._cache is None:
            return await self._ask(messages, is_readable)
        return await self._cache.get_or_make(self._key(messages), lambda: self._ask(messages, is_readable))

    async def _ask(self, messages: Sequence[dict[str, str]], is_readable: Callable[[str], bool] | None = None) -> str:
        completion = await self._create(messages)
        choices = getattr(completion, "choices", None)
        text = choices[0].message.content if choices else None
        cut = choices[0].finish_reason == "length" if choices else False
        if is_readable and (cut or not is_readable(text or "")):
            how = "was cut (finish_reason 'length')" if cut else "cannot be read"
            raise UnreadReply(f"{self.address}: the answer of {self.model!r} {how}: {(text or '')[-200:]!r}.")
        if not text:
            raise ToolError(f"{self.address}: the model {self.model!r} answered without a text.")
        return valid_unicode(text)

    async def _create(self, messages: Sequence[dict[str, str]]) -> Any:
        import openai

        given = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        sent = {name: value for name, value in given.items() if value is not None}
        try:
            return await self._client().chat.completions.create(model=self.model, messages=list(messages), **sent)
        except (
            openai.APIConnectionError,
            openai.RateLimitError,
            openai.InternalServerError,
            openai.ConflictError,
        ) as error:
            raise TransientToolError(f"{self.address}: {error}") from error
        except (openai.OpenAIError, ValueError) as error:
            # A ValueError means that the answer is not JSON.
            raise ToolError(f"{self.address}: {error}") from error

    @cached_property
    def _cache(self) -> ResultCache | None:
        return None if self.cache_path is None else ResultCache(self.cache_path)

    def _client(self) -> Any:
        """The client of the running event loop, since its connections belong to one."""
        import openai

        clients = _CLIENTS.get()
        if self not in clients:
            clients[self] = openai.AsyncOpenAI(
                base_url=self.base_url,
                api_key=os.environ.get(self.api_key_variable, "none"),
                timeout=self.timeout_s,
                max_retries=self.max_attempts - 1,
                http_client=openai.DefaultAsyncHttpxClient(event_hooks={"response": [_as_utf_8]}),
            )
        return clients[self]

    def _key(self, messages: Sequence[dict[str, str]]) -> str:
        request = [self.base_url, self.model, self.temperature, self.max_tokens, list(messages)]
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


async def _as_utf_8(response: Any) -> None:
    """A response does not choose the character set in which it is read: some take quadratic time."""
    response.encoding = "utf-8"


def read_chat_client(fields: Mapping[str, Any], key: str) -> ChatClient:
    """The `ChatClient` with the given fields.

    Args:
        key: the configuration's key that has the fields, for messages.

    Raises:
        ValueError: a field is unknown, missing or wrong.
    """
    check_known(fields, (field.name for field in dataclasses.fields(ChatClient)), f"key of {key}")
    missing = [name for name in ("base_url", "model") if not fields.get(name)]
    if missing:
        raise ValueError(f"{key} has no {missing[0]!r}.")
    return ChatClient(**fields)


_CLIENTS: PerLoop[dict[ChatClient, Any]] = PerLoop(dict)
