"""Harmless attacks succeed without a fence, so the fence is what stops them."""

import asyncio

import pytest

from rllib_arpo.envs.sandbox.fork_server import shared_server
from tests.envs.sandbox.attacks import ATTACKS, BREACH
from tests.envs.sandbox.baits import Baits
from tests.envs.sandbox.campaign import SETUP, attempt

CONTROLS = [name for name, attack in ATTACKS.items() if attack.control]


@pytest.fixture(scope="module")
def baits():
    baits = Baits()
    yield baits
    baits.close()


@pytest.mark.parametrize("name", CONTROLS)
def test_attack_succeeds_without_a_fence(baits, name):
    attack = ATTACKS[name]
    found = asyncio.run(attempt(attack, shared_server(SETUP), baits))
    assert any(BREACH in one for one in found)


def test_a_touched_bait_is_noticed(baits):
    assert baits.damage() == []
    server = shared_server(SETUP)
    asyncio.run(server.run(baits.fill_in("import socket; socket.create_connection(('127.0.0.1', @port@))"), 20.0))
    asyncio.run(server.run(baits.fill_in("open('@folder@/left', 'w')"), 20.0))
    assert baits.damage() == ["files", "tcp"]
    asyncio.run(server.run(baits.fill_in("import os; os.remove('@folder@/left')"), 20.0))
    assert baits.damage() == []
