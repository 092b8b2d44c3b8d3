"""FrozenLake as a recipe: maps of their own, what the model reads, demonstrations that the world repeats."""

import asyncio

import pytest

from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.worlds.registry import find_world
from tuned_examples import frozen_lake
from tuned_examples.frozen_lake import MOVES, Lake, half_good, lake_map, show

LEFT, DOWN, RIGHT, UP = range(4)


def lake(**options) -> dict:
    return {
        "tuned_examples.frozen_lake:Lake": {"read": list(MOVES), "show": "tuned_examples.frozen_lake:show", **options}
    }


def reachable(rows: list[str]) -> set[str]:
    """The kinds of tiles that a walk from S, not over holes, can reach."""
    tiles = {(r, c): tile for r, row in enumerate(rows) for c, tile in enumerate(row)}
    seen, todo = set(), [(0, 0)]
    while todo:
        place = todo.pop()
        if tiles.get(place, "H") != "H" and place not in seen:
            seen.add(place)
            todo += [(place[0] + dr, place[1] + dc) for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0))]
    return {tiles[place] for place in seen}


def test_a_seed_has_one_map_with_a_way_and_no_held_out_map_is_one_of_training():
    maps = [tuple(lake_map(seed)) for seed in range(120)]
    assert maps[7] == tuple(lake_map(7))
    assert all("".join(rows)[0] == "S" and "".join(rows)[-1] == "G" and "G" in reachable(rows) for rows in maps)
    assert not set(maps[::2]) & set(maps[1::2])
    # Some seeds share a map, since few holes are few maps.
    assert len(set(maps)) == 93


def test_the_model_reads_its_four_neighbours(monkeypatch):
    monkeypatch.setattr(frozen_lake, "lake_map", lambda _seed, _size: ["SFF", "HFF", "FFG"])
    env = Lake(3)
    env.reset(seed=0)
    read = [show(env)]
    for move in (RIGHT, DOWN, DOWN):
        env.step(move)
        read.append(show(env))
    assert read == [
        "wallLeft holeDown iceRight wallUp",
        "iceLeft iceDown iceRight wallUp",
        "holeLeft iceDown iceRight iceUp",
        "iceLeft wallDown goalRight iceUp",
    ]
    assert env.step(RIGHT)[1:3] == (1.0, True)


def test_a_path_leads_to_the_lake_and_the_demonstrator_stays_on_it():
    env = Lake(path=3)
    env.reset(seed=7)
    assert ["".join(row) for row in env.desc.astype(str)] == [
        "SFF" + lake_map(7)[0].replace("S", "F"), *("HHH" + row for row in lake_map(7)[1:])
    ]  # fmt: skip
    with pytest.raises(ValueError, match="path=-1"):
        Lake(path=-1)
    for row in half_good(20, path=3):
        read, wrote = ([message["content"] for message in row["messages"][start::2]] for start in (0, 1))
        assert wrote[:3] == ["right"] * 3 and read[:2] == [
            f"{left}Left holeDown iceRight wallUp onPath" for left in ("wall", "ice")
        ]
        assert read[3].endswith(" onLake")
        assert all(move == "right" for text, move in zip(read, wrote, strict=True) if text.endswith("onPath"))


@pytest.mark.parametrize("path", [0, 3])
def test_a_demonstration_is_what_the_world_of_the_recipe_answers(path):
    async def answers(seed: int, texts: list[str]) -> list[tuple[str, bool]]:
        world = find_world(lake(path=path))()
        begin = await world.reset(Question("q", (), (), QA, "q", row={"seed": seed}))
        replies = [await world.act(text) for text in texts]
        return [(begin, False), *((reply.text, reply.done) for reply in replies)]

    for number, row in enumerate(half_good(12, path=path)):
        read, wrote = ([message["content"] for message in row["messages"][start::2]] for start in (0, 1))
        got = asyncio.run(answers(2 * number, wrote))
        assert [text for text, _done in got[:-1]] == read
        # It goes on until the world or the limit ends it.
        assert [done for _text, done in got[:-1]] == [False] * len(wrote)
        assert got[-1][1] or len(wrote) == frozen_lake.MAX_MOVES + path
