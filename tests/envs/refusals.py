"""What the environments refuse: `refusals.txt` has the cases, each with its sentence.

A case is a line with arguments, in Python, of what its section refuses. `ACCEPT=1 pytest tests/envs/test_refusals.py`
writes the sentences of all cases anew, also of a line that has none yet. Read what `git diff` shows of them.
"""

import contextlib
import io
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

import rllib_arpo
from rllib_arpo.commands import run_command
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.protocols.function_calling import function_calling
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.tasks import DatasetTask
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.tools.arguments import schema_validator
from rllib_arpo.envs.worlds import World
from rllib_arpo.envs.worlds.completions import Refused, read_request
from tests.helpers import own_task, own_tool  # noqa: F401  # The cases name the first one.
from tests.helpers.api_agents import adder
from tests.helpers.chat_templates import QWEN25, calling_folder
from tests.helpers.datasets import gsm8k, json_lines, row_of
from tests.helpers.models import byte_tokenizer
from tests.helpers.parquet import parquet, row

SENTENCES = Path(__file__).with_name("refusals.txt")
#: A template that leaves the results of tools out.
NO_RESULTS = QWEN25.replace("\n{{ message.content }}\n</tool_response>", "\n</tool_response>")
TALLY = "tests.helpers.own_tool:TallyTool"
HELPERS = Path(own_tool.__file__).parent
SHOP = {"command": sys.executable, "args": [f"{HELPERS}/mcp_server.py"]}
#: A server whose tool has a name that no tag can carry.
ODD = """from mcp.server.mcpserver import MCPServer
server = MCPServer('odd')
server.add_tool(lambda: 'x', name='an odd/name')
server.run('stdio')"""
DOCUMENTS = [{"text": "a"}]
TEN = {"task": "gsm8k", "path": "ten.jsonl"}
MATH = {"task": "parquet", "tools": ["python"]}
HI = {"role": "user", "content": "Hi."}
AGENT = {"world": adder, "protocol": "function_calling"}


def greet(name: str) -> str:
    return f"Hello {name}"


def looks(at: threading.Lock) -> None: ...


def misses(x) -> None: ...


misses.__annotations__["x"] = "Missing"
GREET = f"{__name__}:greet"


@dataclass
class NoTool:
    name: str = "other"


class Untyped:
    def reset(self): ...

    def go(self, *places): ...


def needs_two(path, gold) -> float: ...


def down(path) -> float:
    raise BrokenToolError("The judge is down.")


async def answered(path) -> float:
    """0 for the answer that the check makes up, which is right."""
    return 1.0 / (path.answer != path.question.answers[0])


class Picky:
    """Refuses rows in one of many ways."""

    def __init__(self, error: Exception | None = None):
        self.error = error

    def reset(self, seed: int, goal: str = ""):
        if self.error:
            raise self.error
        return 3

    def get_reward(self) -> float: ...


class TwoRewards(Picky):
    def get_reward(self, path) -> float: ...


class Goals(Picky):
    def reset(self, goal: str): ...


class Sum(World):
    takes_text = True
    tools = {"python": {"type": "object", "properties": {}}}  # noqa: RUF012

    def __init__(self, goal: int = 10): ...

    async def act(self, action): ...


def tool(name: str, **options: Any) -> dict[str, Any]:
    return {"tools": {name: options}}


def mcp(**server: Any) -> dict[str, Any]:
    """The tools of the MCP server `s`."""
    limits = {"start_timeout_s": 1.0} if "sleep" in str(server) else {}
    return tool("mcp", servers={"s": server}, **limits)


def judge(**fields: Any) -> dict[str, Any]:
    return {"qa_metric": "judge", "judge": fields}


def far(name: Any, python: str = sys.executable) -> dict[str, Any]:
    return {"world": {name: {"python": python}}}


def configure(env_config: dict[str, Any]) -> None:
    defaults = {"model_name_or_path": "tokenizer"} | ({} if "world" in env_config else {"task": "arithmetic"})
    given = {name: value for name, value in {**defaults, **env_config}.items() if value is not None}
    ToolEnv.validate_config(given)
    ToolEnv(given)


def ask_row(task: str, changes: dict[str, Any]) -> None:
    path = json_lines("rows.jsonl", [{**row_of(task), **changes}])
    DatasetTask(task=task, path=path).question(0)


def ask_file(name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    DatasetTask(task="gsm8k", path=name).question(0)


def index_file(name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        status = run_command("index", [name, "--output", "index"])
    if status:
        raise ValueError(told.getvalue().splitlines()[-1].removeprefix("error: "))


def call_functions(chat_template: str | None) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = chat_template
    function_calling({"tally": own_tool.TallyTool()}, Chat(tokenizer))


def ask_agent(message: Any, **more: Any) -> None:
    read_request({"messages": [message], **more})


#: Section of the file -> what its cases are the arguments of.
SECTIONS: dict[str, Callable[..., object]] = {
    "configurations": configure,
    "rows": ask_row,
    "files of rows": ask_file,
    "files of passages": index_file,
    "schemas of tools": schema_validator,
    "chat templates": call_functions,
    "requests of agents": ask_agent,
}


def prepare() -> None:
    """Puts the files that the cases name into the current folder."""
    calling_folder("tokenizer")
    json_lines("ten.jsonl", gsm8k(10))
    Path("broken.py").write_text("no_name")
    Path("cut_off.parquet").write_bytes(Path(parquet("good.parquet", [row()])).read_bytes()[:-100])
    parquet("lacks.parquet", [{"prompt": row()["prompt"], "ability": "math"}])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row()]).slice(0, 0), "empty.parquet")
    parquet("long.parquet", [row("x" * 3000)])


def anew(text: str) -> str:
    """The cases of this text with the sentences of today."""
    lines, section = [], ""
    for line in text.splitlines():
        if line.startswith("# "):
            section = line.removeprefix("# ")
        if not line.startswith(" "):
            lines.append(line)
        if line and line[0] not in " #":
            lines.append(f"    {sentence(SECTIONS[section], line)}")
    return "\n".join(lines) + "\n"


def sentence(refuses: Callable[..., object], case: str) -> str:
    try:
        eval(f"refuses({case})", globals(), {"refuses": refuses})
    except (ValueError, Refused) as error:
        return anywhere(str(error))
    raise AssertionError(f"{case} is not refused.")


def anywhere(text: str) -> str:
    """With names for what differs between machines."""
    names = {HELPERS.parent: "TESTS", Path(rllib_arpo.__file__).parent: "PACKAGE", sys.executable: "PYTHON"}
    for path, name in names.items():
        text = text.replace(str(path), name)
    return re.sub(r"0x[0-9a-f]+", "0x...", text)
