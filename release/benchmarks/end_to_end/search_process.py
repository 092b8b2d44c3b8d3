"""The task's search tool in a process of its own, for TRL's side: a line [split, query] gets a line with what is shown.

python -m release.benchmarks.end_to_end.search_process
"""

from __future__ import annotations

import asyncio
import json
import sys

from rllib_arpo.envs.tasks.trails import TrailsTask
from rllib_arpo.envs.tools.search import SearchTool
from rllib_arpo.envs.tools.tool import run_tool

SPLITS = ("train", "test")


async def answer_all() -> None:
    tools = {split: SearchTool(**TrailsTask(split=split).tool_defaults()["search"]) for split in SPLITS}
    for tool in tools.values():
        tool.prepare()
    for line in sys.stdin:
        split, query = json.loads(line)
        result = await run_tool(tools[split], query)
        print(json.dumps(result.text), flush=True)


if __name__ == "__main__":
    asyncio.run(answer_all())
