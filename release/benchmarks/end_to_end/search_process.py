"""Runs the task's search tool in its own process, for TRL's side: it answers each line with a query by a line of hits.

python -m release.benchmarks.end_to_end.search_process
"""

from __future__ import annotations

import asyncio
import json
import sys

from rllib_arpo.envs.tasks.trails import TrailsTask
from rllib_arpo.envs.tools.search import SearchTool
from rllib_arpo.envs.tools.tool import run_tool


async def answer_all() -> None:
    tool = SearchTool(**TrailsTask().tool_defaults()["search"])
    tool.prepare()
    for line in sys.stdin:
        print(json.dumps((await run_tool(tool, json.loads(line))).text), flush=True)


if __name__ == "__main__":
    asyncio.run(answer_all())
