"""Symbolic links in the directory of a job that lead to files of another job."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of, orphans_uri
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.maintenance.gc import DeletionLog
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import TargetFiles
from airflow_provider_statecheck.storage.discarding import StorageDiscarder
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.orphans import Quarantine
from tests.seeds import named_in_failure
from tests.unit.written_stage import WrittenStage, collect, local_path

OWN, OTHER = job_id_of("own"), job_id_of("other")
FILES = (
    "chk-1/_metadata",
    "chk-1/1-aa/part",
    "chk-2/2-bb",
    f"shared/{'0' * 32}/step/1-cc/data/part",
    f"shared/{'0' * 32}/state/1-dd",
    "taskowned/x/y",
    "_orphans",
)
SAVEPOINTS = ("savepoint-abcdef-0123456789ab", "savepoint-fedcba-0123456789ab")


def written(base: Path) -> CheckpointStorage:
    """Write files of two jobs and two savepoints."""
    for owner in (OWN, OTHER, *(f"savepoints/{name}" for name in SAVEPOINTS)):
        for name in FILES:
            path = base / owner / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(owner.encode())
    return CheckpointStorage.open(str(base))


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def replace_by_link(path: Path, target: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(target)


def places(folder: Path) -> list[Path]:
    """Return a directory and everything below it."""
    return [folder, *sorted(folder.rglob("*"))]


def delete_all(storage: CheckpointStorage, own: Path) -> None:
    """Delete every file and directory of a job in each way, whether it exists or not."""
    discarder = StorageDiscarder(storage, OWN, lambda directory: directory.endswith(SAVEPOINTS[0]))
    ways: list[Callable[[str], None]] = [
        discarder.discard_file,
        discarder.discard_location,
        discarder.discard_checkpoint,
        storage.delete_file,
        storage.delete_directory,
        DeletionLog(storage).delete_file,
        DeletionLog(storage).delete_directory,
    ]
    names = [*FILES, *{parent.as_posix() for name in FILES for parent in Path(name).parents}]
    for delete in ways:
        for name in names:
            with suppress(StateCheckError):
                delete(f"file://{own / name}")
    with suppress(StateCheckError):
        storage.remove_empty_directories(f"file://{own}")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 40))])
def test_no_way_of_deleting_follows_links_out_of_the_directory_of_a_job(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for number in range(24):
        base = tmp_path / str(number)
        storage = written(base)
        own, other = [(base / OWN, base / OTHER), *[[base / "savepoints" / name for name in SAVEPOINTS]]][number % 2]
        link = chance.choice(places(own))
        target = chance.choice([other / link.relative_to(own), *places(other)])
        replace_by_link(link, target)
        with named_in_failure(seed, [f"{link} -> {target}"]):
            before = content(other)
            delete_all(storage, own)
            assert content(other) == before
            assert set(places(other)) >= set(before)


@pytest.mark.parametrize("level", ["", "chk-1", "shared", "shared/*", "shared/*/*", "shared/*/*/*"])
def test_collection_deletes_nothing_through_a_link_and_reports_it(level: str, tmp_path: Path) -> None:
    stage = WrittenStage(CheckpointStorage.open(str(tmp_path / "base")))
    for job in ("own", "other"):
        stage.run(job, checkpoints=2)
    base = local_path(stage.storage.base_uri)
    place, *_ = sorted((base / OWN).glob(level)) if level else [base / OWN]
    target, *_ = sorted((base / OTHER).glob(level)) if level else [base / OTHER]
    before = content(base / OTHER)
    replace_by_link(place, target)
    report = collect(stage, "own")
    assert content(base / OTHER) == before
    # Where the metadata is another's, nothing of the checkpoint is deleted, and the link is not come upon.
    if level in ("", "shared/*/*"):
        assert any(f"found the symbolic link {place}" in text for text in report.problems)


def test_link_to_a_job_that_was_moved_to_another_disk_is_followed(tmp_path: Path) -> None:
    storage = written(tmp_path / "base")
    shutil.move(tmp_path / "base" / OWN, tmp_path / "disk" / OWN)
    (tmp_path / "base" / OWN).symlink_to(tmp_path / "disk" / OWN)
    storage.delete_directory(f"{storage.base_uri}/{OWN}/chk-1")
    assert not (tmp_path / "disk" / OWN / "chk-1").exists()


def test_record_of_the_quarantine_is_not_written_through_a_link(tmp_path: Path) -> None:
    storage = written(tmp_path)
    replace_by_link(tmp_path / OWN, tmp_path / OTHER)
    orphan = f"{storage.base_uri}/{OWN}/chk-1/1-aa"
    quarantine = Quarantine(storage, OWN, stay=timedelta(days=1))
    with pytest.raises(InvalidConfigurationError, match="found the symbolic link"):
        quarantine.admit({orphan}, datetime(2026, 1, 1, tzinfo=UTC))
    assert local_path(orphans_uri(storage.base_uri, OTHER)).read_bytes() == OTHER.encode()


def test_files_of_a_sink_are_not_deleted_through_a_link_below_its_target(tmp_path: Path) -> None:
    lineage = "a" * 32
    (tmp_path / "real").mkdir()
    (tmp_path / "target").symlink_to(tmp_path / "real")
    files = TargetFiles.open(str(tmp_path / "target"), lineage, {})
    staged = f"{_internal(files)}/staged/f"
    for folder in ("real", "other"):
        (tmp_path / folder / staged).parent.mkdir(parents=True)
        (tmp_path / folder / staged).write_bytes(b"x")
    files.delete(staged)
    assert not (tmp_path / "real" / staged).exists()
    replace_by_link((tmp_path / "real" / staged).parent, (tmp_path / "other" / staged).parent)
    with pytest.raises(InvalidConfigurationError, match="found the symbolic link"):
        files.delete(staged)
    assert (tmp_path / "other" / staged).exists()


def _internal(files: TargetFiles) -> str:
    from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import lineage_directory

    return lineage_directory(files.lineage)
