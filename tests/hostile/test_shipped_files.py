"""Files that another job puts where a driver in cluster mode loads this package from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.spark.driver.application import STAGE_APPLICATION
from airflow_provider_statecheck.spark.driver.cluster_start import arguments_of_python
from airflow_provider_statecheck.spark.driver.shipped_files import (
    ShippedFile,
    write_launcher_jar,
    write_package,
    write_stage_application,
)

PLANTED = b"print('planted code ran')\n"
WRITERS: dict[str, Callable[[Path], Path]] = {
    "package": lambda folder: write_package(folder).path,
    "launcher": lambda folder: write_launcher_jar(folder).path,
    "stage application": write_stage_application,
}


def _other(path: Path) -> None:
    path.write_bytes(PLANTED)


def _other_of_equal_size(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _link(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(target)


def _dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


PLANTS = [_other, _other_of_equal_size, _link, _dangling_link, _fifo, _empty]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda each: each.__name__.strip("_"))
@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_planted_under_the_name_of_a_shipped_file_is_replaced(
    kind: str, plant: Callable[[Path], None], tmp_path: Path
) -> None:
    path = WRITERS[kind](tmp_path)
    expected = path.read_bytes()
    plant(path)
    assert WRITERS[kind](tmp_path) == path
    assert (path.is_symlink(), path.read_bytes()) == (False, expected)
    assert [each for each in path.parent.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("kind", WRITERS)
def test_directory_under_the_name_of_a_shipped_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = WRITERS[kind](tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(EnvironmentNotReadyError, match="set package_dir"):
        WRITERS[kind](tmp_path)


def start(folder: Path, launcher: ShippedFile, package: ShippedFile) -> subprocess.CompletedProcess[str]:
    """Run Python as a worker does, in the folder of a driver, to which the worker has copied the launcher."""
    working = folder / "driver"
    working.mkdir()
    if launcher.path.exists():
        (working / launcher.path.name).write_bytes(launcher.path.read_bytes())
    arguments = arguments_of_python(launcher, package, STAGE_APPLICATION, ["module:stage"])
    return subprocess.run(
        [sys.executable, "-c", *arguments], capture_output=True, text=True, cwd=working, check=False, timeout=60
    )


@pytest.mark.parametrize("plant", [*PLANTS[:2], *PLANTS[4:], Path.unlink], ids=lambda each: each.__name__.strip("_"))
@pytest.mark.parametrize("is_package", [True, False], ids=["package", "launcher"])
def test_file_that_is_changed_between_submission_and_start_is_not_run(
    plant: Callable[[Path], None], tmp_path: Path, *, is_package: bool
) -> None:
    launcher, package = write_launcher_jar(tmp_path), write_package(tmp_path)
    changed = package if is_package else launcher
    plant(changed.path)
    if not is_package and plant is _fifo:
        pytest.skip("a worker cannot copy it")
    done = start(tmp_path, launcher, package)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"Expected the file {changed.path if is_package else changed.path.name} as the task wrote it" in done.stderr
    assert "Traceback" not in done.stderr
