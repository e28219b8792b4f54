"""Trainers and receivers that are killed and started again: all rebuild, and the next syncs are right."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from fastsft.weight_sync.modes import MODES
from weight_sync_parts.restarted_members import Members, members


def check(tails: dict[str, list[dict[str, Any]]]) -> None:
    """Receivers have exactly what the trainer sent, under its version, one version after another."""
    sent = {entry["version"]: entry["seed"] for entry in tails["trainer.0"]}
    for name, entries in tails.items():
        versions = [entry["version"] for entry in entries]
        assert versions == list(range(versions[0], versions[0] + len(versions))), (name, versions)
        assert len({entry["generation"] for entry in entries}) == 1, name
        assert not any(entry.get("wrong") for entry in entries), name
        shared = [entry for entry in entries if entry["version"] in sent]
        assert len(shared) >= len(entries) - 3, (name, versions, sorted(sent))
        assert all(sent[entry["version"]] == entry["seed"] for entry in shared), name


def check_words(made: Members) -> None:
    """No member died of itself, and every failure is told in words of ours."""
    for name, entries in made.entries().items():
        for entry in entries:
            assert "died" not in entry, (name, entry)
            words = entry.get("failed", "")
            assert not any(each in words for each in ("/gloo/", "connectFullMesh", "keys:")), (name, words)


@pytest.mark.variants("vllm_packed", "trinity")
@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_killed_receiver_and_a_killed_trainer_join_again(tmp_path: Path, mode: str) -> None:
    with members(tmp_path, mode) as made:
        check(made.wait_for_syncs(3, 120.0))
        for name in ("receiver-2", "trainer"):
            made.kill(name)
            made.start(name)
            check(made.wait_for_syncs(4, 120.0))
        check_words(made)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", sorted(MODES))
def test_fifty_syncs_after_random_kills(tmp_path: Path, mode: str, seed: int) -> None:
    draw = random.Random(f"{mode} gloo {seed}")
    with members(tmp_path, mode) as made:
        for _ in range(8):
            time.sleep(draw.uniform(0.0, 1.5))  # also while the others still rebuild
            killed = draw.sample(made.names, draw.choice([1, 1, 1, 2, 3]))
            for name in killed:
                made.kill(name)
                time.sleep(draw.choice([0.0, draw.uniform(0.0, 0.5)]))
            for name in draw.sample(killed, len(killed)):
                made.start(name)
        check(made.wait_for_syncs(50, 240.0))
        check_words(made)
