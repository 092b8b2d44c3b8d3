"""A taskset of verifiers."""

from __future__ import annotations

import verifiers.v1 as vf
from pydantic import Field

__all__ = ["CapitalsTaskset"]

CAPITALS = {"Norway": "Oslo", "Italy": "Rome", "Chile": "Santiago", "Kenya": "Nairobi"}


class CapitalData(vf.TaskData):
    answer: str


class Notes(vf.State):
    looked_up: list[str] = Field(default_factory=list)


class Atlas(vf.Toolset[vf.ToolsetConfig, Notes]):
    """Of each task."""

    async def setup_task(self, task):
        self.open = True

    @vf.tool
    async def look_up(self, country: str) -> str:
        """The capital of a country."""
        assert self.open
        self.state.looked_up.append(country)
        return CAPITALS[country]


class Words(vf.Toolset[vf.ToolsetConfig, vf.State]):
    """Of all tasks."""

    TOOL_PREFIX = None
    number = 0

    async def setup(self):
        Words.number += 1

    @vf.tool(name="first")
    def first_letters(self, word: str, count: int = 1) -> str:
        return f"{word[:count]} of toolset {self.number}"


class CapitalTask(vf.Task[CapitalData, Notes]):
    @classmethod
    def toolsets(cls, config):
        return [Atlas(vf.ToolsetConfig())]

    async def setup(self, trace):
        trace.info["begun"] = trace.messages[-1].content

    @vf.reward
    async def right(self, trace) -> float:
        assert [message.role for message in trace.messages][:2] == ["system", "user"]
        assert trace.info["begun"] == self.data.prompt[-1].content
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def frugal(self, trace) -> float:
        assert len(trace.tool_messages) >= len(trace.state.looked_up)
        return 1 / (1 + len(trace.state.looked_up))


class CapitalsConfig(vf.TasksetConfig):
    number: int = 4


class CapitalsTaskset(vf.Taskset[CapitalTask, CapitalsConfig]):
    def load(self):
        for country, capital in list(CAPITALS.items())[: self.config.number]:
            data = CapitalData(prompt=f"The capital of {country}?", system_prompt="Be brief.", answer=capital)
            yield CapitalTask(data, self.config.task)

    @classmethod
    def toolsets(cls, config):
        return [Words(vf.ToolsetConfig())]
