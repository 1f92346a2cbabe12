from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def _all_files(root: Path) -> set[str]:
    return {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}


class TestDeleting:
    def test_file_goes_alone(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/chk-7/f", b"x")
        storage.write_bytes(f"{job}/chk-7/g", b"x")
        storage.delete_file(f"{job}/chk-7/f")
        assert storage.list_files(job) == {"chk-7/g": 1}

    def test_directory_goes_with_all_in_it_and_nothing_beside_or_above(
        self, storage: CheckpointStorage, job: str
    ) -> None:
        for name in ("chk-1/_metadata", "chk-1/a/b/c", "chk-1/.left.tmp", "chk-10/f", "shared/f"):
            storage.write_bytes(f"{job}/{name}", b"x")
        storage.delete_directory(f"{job}/chk-1")
        assert storage.list_files(job) == {"chk-10/f": 1, "shared/f": 1}

    def test_job_directory_stays_when_its_last_checkpoint_goes(self, local: CheckpointStorage) -> None:
        job = f"{local.base_uri}/{'a' * 32}"
        local.write_bytes(f"{job}/chk-1/f", b"x")
        local.delete_directory(f"{job}/chk-1/")
        assert _path(job).is_dir()
        assert list(_path(job).iterdir()) == []

    def test_empty_directory_goes(self, local: CheckpointStorage) -> None:
        directory = _path(local.base_uri) / ("a" * 32) / "chk-1" / "empty"
        directory.mkdir(parents=True)
        local.delete_directory(f"file://{directory.parent}")
        assert not directory.parent.exists()

    def test_missing_ones_are_success_again_and_again(self, storage: CheckpointStorage, job: str) -> None:
        for _ in range(2):
            storage.delete_file(f"{job}/chk-7/f")
            storage.delete_directory(f"{job}/chk-7")
        storage.write_bytes(f"{job}/chk-7/f", b"x")
        for _ in range(2):
            storage.delete_directory(f"{job}/chk-7")
        assert storage.list_files(job) == {}

    def test_nothing_but_a_checkpoint_or_snapshot_can_be_deleted(self, storage: CheckpointStorage, job: str) -> None:
        storage.write_bytes(f"{job}/chk-1/f", b"x")
        root = storage.base_uri.rpartition("/")[0]
        for uri in (
            root,
            storage.base_uri,
            job,
            f"{job}/",
            f"{job}/.",
            f"{job}/chk-1/..",
            f"{job}/*",
            f"{job}//",
            f"{job}/shared",
        ):
            for delete in (storage.delete_directory, storage.delete_file):
                with pytest.raises(InvalidConfigurationError, match="nothing was deleted"):
                    delete(uri)
        assert storage.list_files(storage.base_uri) == {f"{'0123456789abcdef' * 2}/chk-1/f": 1}

    def test_snapshot_goes_and_those_beside_it_stay(self, storage: CheckpointStorage, job: str) -> None:
        step = f"{job}/shared/{'b' * 32}/raw-1a"
        for name in ("1-a/data/part-0", "1-a/data/.part-0.crc", "1-a/_manifest", "2-b/_manifest"):
            storage.write_bytes(f"{step}/{name}", b"x")
        storage.delete_directory(f"{step}/1-a")
        assert storage.list_files(step) == {"2-b/_manifest": 1}

    def test_link_to_a_directory_is_deleted_without_what_it_points_at(
        self, local: CheckpointStorage, tmp_path: Path
    ) -> None:
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "f").write_bytes(b"x")
        job = _path(local.base_uri) / ("a" * 32)
        (job / "chk-1").mkdir(parents=True)
        (job / "chk-1" / "inner").symlink_to(precious)
        (job / "chk-2").symlink_to(precious)
        local.delete_directory(f"file://{job}/chk-1")
        local.delete_directory(f"file://{job}/chk-2")
        assert list(job.iterdir()) == []
        assert (precious / "f").read_bytes() == b"x"
