"""Random walks over mailboxes: nothing is lost, and no two processes complete checkpoints as one attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.mailbox_world import MailboxWorld
from tests.seeds import folder_for, named_in_failure, new_seeds

STEPS = 12


def walk(folder: Path, seed: int) -> None:
    world = MailboxWorld(folder_for(folder, seed), seed)
    with named_in_failure(seed, world.history):
        world.walk(STEPS)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_walks_lose_nothing(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 50):
        walk(tmp_path, seed)


@pytest.mark.soak
def test_new_walks_lose_nothing(tmp_path: Path) -> None:
    for seed in new_seeds(600):
        walk(tmp_path, seed)
