"""Plays a world by hand or at random, forks it, and says by which method and how fast it forks.

rllib-arpo try env.json                                     # reads actions from standard input
rllib-arpo try env.json --random 10 --words left right up down

The file has an `env_config` with a "world". An action is a text, or a call such as
{"name": "buy", "arguments": {"item": 3}}.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from rllib_arpo.envs.env_config import read_env_config
from rllib_arpo.envs.errors import ForkRefused
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.support.data_files import read_json
from rllib_arpo.envs.support.loop_thread import in_thread
from rllib_arpo.envs.tools import Tool
from rllib_arpo.envs.tools.random_arguments import random_arguments
from rllib_arpo.envs.worlds import Call, Reply, WholeTurn
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.session import WorldSession, difference
from rllib_arpo.errors import CHECKS, CommandError, command_errors
from rllib_arpo.options.rules import at_least
from rllib_arpo.terminal import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="a JSON file with the env_config")
    parser.add_argument("--question", type=int, default=0, help="the question's number")
    parser.add_argument("--random", type=int, metavar="N", help="play N random actions instead of reading them")
    parser.add_argument("--words", nargs="+", default=[], help="texts that random play may write, besides its calls")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random actions")
    parser.add_argument("--forks", type=int, default=5, help="how many forks to time")


def run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    if args.words and args.random is None:
        raise CommandError("--words: only --random reads it.")
    with command_errors():
        if args.random is not None:
            at_least(0).check("--random", args.random)
        env_config = read_json(args.config)
        if not isinstance(env_config, dict):
            raise CommandError(f"{args.config}: the env_config must be a JSON object.")
        config, task, tools = read_env_config({"model_name_or_path": "(any)", **env_config})
        question = task.question(args.question, tuple(tools))
    if config.make_world is None:
        raise CommandError(f"{args.config}: has no 'world'.")
    own = {name: tool for name, tool in tools.items() if tool.make_world is config.make_world}
    if args.random is None:
        actions: Iterator[str] = (line.rstrip("\n") for line in sys.stdin)
    else:
        actions = random_actions(own, args.words, random.Random(args.seed), args.random)
    with command_errors((*CHECKS, ForkRefused)):
        asyncio.run(_play(config.make_world, question, own, actions, args.forks))
    return 0


async def _play(
    make: WorldMaker, question: Question, tools: Mapping[str, Tool], actions: Iterator[str], num_forks: int
) -> None:
    trunk = WorldSession(make, question)
    await trunk.ready()
    for role, text in (*question.messages, ("world", trunk.opening or "")):
        print(printable(f"{role}: {text}"))
    session = trunk.fork_root()
    # In a thread, because reading blocks and connections to servers must be kept alive meanwhile.
    while (action := await in_thread(next, actions, None)) is not None:
        print(printable(f"> {action}"))
        reply = await _reply(session, tools, action)
        paid = f" (reward {reply.reward:g})" if reply.reward else ""
        kind = f" ({reply.raised[0]})" if reply.raised else ""
        print(printable(f"{reply.status}{kind}: {reply.text}{' '.join(map(str, reply.messages))}{paid}"))
        if reply.done:
            print("The world has ended the trajectory.")
            break
    print(f"Actions: {len(session.moves)}. Rewards: {session.paid:g}. {await _forked(session, num_forks)}")
    first, second = await difference(session), await difference(session)
    if first is None and second is None:
        print("Repeated twice, it gives the same replies.")
    else:
        print(printable(f"Repeated, it gives other replies: {first or second}."))
    for one in (session, trunk):
        await one.close()


async def _reply(session: WorldSession, tools: Mapping[str, Tool], action: str) -> Reply:
    """The world's answer to a line. A JSON object with a "name" is a call; any other line is a text.

    Raises:
        CommandError: the world does not have the tool, or does not take texts.
    """
    try:
        call = json.loads(action)
    except ValueError:
        call = None
    world = await session.ready()
    if world.takes_turns:
        is_call = isinstance(call, dict) and "name" in call
        turn = WholeTurn("", Call(call["name"], call.get("arguments", {}))) if is_call else WholeTurn(action)
        return await session.act(turn)
    if isinstance(call, dict) and "name" in call:
        if call["name"] not in tools:
            raise CommandError(f"The world has no tool {call['name']!r}: it has {', '.join(tools) or 'none'}.")
        return await session.call(tools[call["name"]], call.get("arguments", {}))
    if not world.takes_text:
        raise CommandError(f'The world takes only calls, {{"name": ..., "arguments": {{...}}}}, not {action!r:.80}.')
    return await session.act(action)


async def _forked(session: WorldSession, number: int) -> str:
    """Forks a session `number` times, one after the other; the sentence has the method and the median time."""
    times = []
    for _ in range(number):
        begin = time.perf_counter()
        fork = session.fork()
        await fork.ready()
        times.append(1e3 * (time.perf_counter() - begin))
        await fork.close()
    if not times:
        return ""
    return f"It forks by {session.maker.fork_method}: {statistics.median(times):.2f} ms (median of {number})."


def random_actions(tools: Mapping[str, Tool], words: Sequence[str], rng: random.Random, number: int) -> Iterator[str]:
    """Random lines for `_reply`: calls with arguments that fit their schemas, and words.

    Raises:
        CommandError: there are neither tools nor words.
    """
    choices: list[Tool | str] = [*tools.values(), *words]
    if not choices:
        raise CommandError("The world has no tools: give the texts for random play with --words.")
    for _ in range(number):
        chosen = rng.choice(choices)
        if isinstance(chosen, str):
            yield chosen
        else:
            yield json.dumps({"name": chosen.name, "arguments": random_arguments(chosen, rng)})
