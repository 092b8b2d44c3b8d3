"""FrozenLake with a map for each seed, demonstrations, and a small model that is cold-started on them.

    python -m tuned_examples.frozen_lake        # prints the folder; makes the model in some minutes

The demonstrator mostly walks right, otherwise down, and never into a wall, but it looks for holes only every fourth
time. ARPO teaches the model to look every time. A path may lead to the lake; on it there is nothing to choose.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from tuned_examples.small_models import ColdStart, SmallModel, make_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SIZE = 4
#: The share of ice among the tiles of a map, before maps without a way to the goal are thrown away.
ICE = 0.8
#: gymnasium's actions by number, and how much the demonstrator likes each. It likes right most, even into a hole.
MOVES = ("left", "down", "right", "up")
LIKES = np.array([0.1, 0.25, 0.55, 0.1])
#: How often the demonstrator looks for holes.
LOOKS = 0.25
TILES = {"S": "ice", "F": "ice", "H": "hole", "G": "goal", "": "wall"}
PLACES = ("onLake", "onPath")
#: The most moves on the lake in a demonstration, and in a trajectory of the recipe.
MAX_MOVES = 12

Transcript = dict[str, list[dict[str, str]]]


class Lake(FrozenLakeEnv):
    """FrozenLake without slipping, on the map of the seed. Even and odd seeds share no map.

    Args:
        size: tiles on each side of the lake.
        path: tiles of a path before it, along which the player can only walk.
    """

    def __init__(self, size: int = SIZE, path: int = 0):
        self.size, self.path = size, path
        super().__init__(desc=with_path(lake_map(0, size), path), is_slippery=False)

    def reset(self, *, seed=None, options=None):
        super().__init__(desc=with_path(lake_map(seed or 0, self.size), self.path), is_slippery=False)
        return super().reset(seed=seed)


def with_path(rows: Sequence[str], length: int) -> list[str]:
    """The map of a lake with a path from the left to its first tile, along the edge and above holes."""
    if length < 0:
        raise ValueError(f"path={length}: must be 0 or more.")
    first, *others = rows
    return ["S" + "F" * length + first[1:], *("H" * length + row for row in others)]


def lake_map(seed: int, size: int = SIZE) -> list[str]:
    """The rows of a map with a way from S (start) to G (goal) over F (ice), around H (holes)."""
    drawn = (generate_random_map(size, ICE, 1000 * seed + attempt) for attempt in itertools.count())
    return next(rows for rows in drawn if zlib.crc32("".join(rows).encode()) % 2 == seed % 2)


def show(env: Lake) -> str:
    """What lies around the player, as "wallLeft iceDown holeRight wallUp"; with a path also the player's place."""
    words = [f"{TILES[tile]}{move.title()}" for move, tile in zip(MOVES, around(env), strict=True)]
    return " ".join([*words, PLACES[on_path(env)]] if env.path else words)


def on_path(env: Lake) -> bool:
    return int(env.s) % env.ncol < env.path


def around(env: FrozenLakeEnv) -> list[str]:
    """The tiles to the left of the player, below, to the right and above; "" beyond the edge."""
    row, column = divmod(int(env.s), env.ncol)
    places = [(row, column - 1), (row + 1, column), (row, column + 1), (row - 1, column)]
    inside = [0 <= r < env.nrow and 0 <= c < env.ncol for r, c in places]
    return [env.desc[place].decode() if known else "" for place, known in zip(places, inside, strict=True)]


def _playing(seed: int, path: int) -> Lake:
    env = Lake(path=path)
    env.reset(seed=seed)
    return env


def _messages(turns: Sequence[tuple[str, str]]) -> Transcript:
    """A transcript of (what the model reads, what it writes)."""
    pairs = [({"role": "user", "content": read}, {"role": "assistant", "content": wrote}) for read, wrote in turns]
    return {"messages": list(itertools.chain(*pairs))}


def half_good(count: int, seed: int = 0, path: int = 0) -> Iterator[Transcript]:
    """`count` games that the demonstrator plays on maps of the training split."""
    for number in range(count):
        env, rng, turns = _playing(2 * number, path), np.random.default_rng((seed, number)), []
        ended = False
        while not ended and len(turns) < MAX_MOVES + path:
            move = MOVES.index("right") if on_path(env) else demonstrated(around(env), rng)
            turns.append((show(env), MOVES[move]))
            ended = env.step(move)[2]
        yield _messages(turns)


def demonstrated(tiles: Sequence[str], rng: np.random.Generator) -> int:
    """The demonstrator's move between these tiles, as `around` returns them."""
    avoided = ("", "H") if rng.random() < LOOKS and set(tiles) - {"", "H"} else ("",)
    likes = LIKES * [tile not in avoided for tile in tiles]
    return int(rng.choice(len(MOVES), p=likes / likes.sum()))


MODEL = SmallModel(
    hidden_size=96,
    num_layers=3,
    num_heads=3,
    stages=(ColdStart("half_good", count=4800, epochs=1, batch_size=32, lr=2e-3),),
)


def lake_model(recipe: SmallModel = MODEL, path: int = 0) -> str:
    """Folder of the small model, cold-started on lakes with a path of this length; made the first time."""
    rows = {"half_good": functools.partial(half_good, path=path)}
    return recipe.cold_started("frozen-lake-small", lake_tokenizer(path), rows)


def lake_tokenizer(path: int = 0) -> PreTrainedTokenizerFast:
    """Each move is a token, and so is each word of `show`: reading a neighbour takes one look."""
    seen = [f"{tile}{move.title()}" for move in MOVES for tile in TILES.values()]
    seen += PLACES if path else ()
    return make_tokenizer([*MOVES, *seen, *(f" {word}" for word in seen)])


if __name__ == "__main__":
    print(lake_model())
