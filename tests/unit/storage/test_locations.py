"""Locations of files that a process may open."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import LocationNotAllowedError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.locations import AllowedLocations


@pytest.fixture
def linked(tmp_path: Path) -> str:
    """A file behind a link from a checkpoint directory to another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "x").write_bytes(b"1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "savepoints").symlink_to(tmp_path / "disk")
    return f"file://{tmp_path}/data/savepoints"


def test_a_link_below_the_checkpoint_directory_is_a_location_of_its_own_once_it_is_allowed(tmp_path, linked):
    storage = CheckpointStorage.open(str(tmp_path / "data"))
    with pytest.raises(LocationNotAllowedError):
        storage.read_bytes(f"{linked}/x")
    assert storage.allowing(linked).read_bytes(f"{linked}/x") == b"1"
    assert storage.allowing(locations=[linked]).read_bytes(f"{linked}/x") == b"1"
    assert storage.within(storage.allowed | AllowedLocations.only([linked])).read_bytes(f"{linked}/x") == b"1"


def test_a_location_is_kept_once():
    known = AllowedLocations().below("file:///data")
    assert known.below("file:///data/", "file:///data").places == known.places
