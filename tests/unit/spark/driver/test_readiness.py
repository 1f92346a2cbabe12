"""Checks before a stage starts."""

from __future__ import annotations

import base64
import errno
import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, StorageError
from airflow_provider_statecheck.spark.driver.readiness import (
    check_environment,
    has_own_files,
    require_reachable,
    require_shared_path,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


class SparkThatFails:
    """A session that is not asked before the task has written, or that fails as a cluster does."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def read(self) -> object:
        raise self._error


def test_folder_that_cannot_be_made_is_nothing_that_a_retry_mends(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentNotReadyError, match="use another checkpoint_dir"):
        require_shared_path(SparkThatFails(AssertionError()), f"file://{tmp_path}/file/x")  # type: ignore[arg-type]


def test_local_directory_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spark: Any = SimpleNamespace(conf={"spark.master": "local[2]"})
    storage = CheckpointStorage.open(f"{tmp_path}/file/x")
    with pytest.raises(EnvironmentNotReadyError, match=f"found that {tmp_path}/file is no writable directory"):
        require_reachable(spark, storage)
    require_reachable(spark, CheckpointStorage.open(f"{tmp_path}/x/y"))
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_disk_that_is_read_only_at_the_moment_leaves_room_for_a_retry(tmp_path: Path) -> None:
    spark: Any = SimpleNamespace(conf={"spark.master": "local[2]"})
    storage = CheckpointStorage.open(f"{tmp_path}/x")
    command = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        'mount -t tmpfs -o ro none "$1" && shift && exec "$@"',
        "sh",
        str(tmp_path),
    ]
    tried = subprocess.run(
        [*command, sys.executable, "-c", _REQUIRE, storage.base_uri], capture_output=True, text=True, check=False
    )
    require_reachable(spark, storage)
    if "mount" in tried.stderr or "unshare" in tried.stderr:
        pytest.skip("mount namespaces are not allowed here")
    assert (
        f"StorageError: The storage failed at {tmp_path}/x: [Errno 30] Read-only file system: '{tmp_path}'"
        in tried.stderr
    )


_REQUIRE = """
import sys
from types import SimpleNamespace
from airflow_provider_statecheck.spark.driver.readiness import require_reachable
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

require_reachable(SimpleNamespace(conf={"spark.master": "local[2]"}), CheckpointStorage.open(sys.argv[1]))
"""


def test_volume_that_fails_for_a_moment_leaves_room_for_a_retry(tmp_path: Path) -> None:
    spark = SparkThatFails(OSError(errno.ESTALE, "Stale file handle"))
    with pytest.raises(StorageError, match="Stale file handle"):
        require_shared_path(spark, f"file://{tmp_path}/x")  # type: ignore[arg-type]
    assert list((tmp_path / "x").iterdir()) == []


JAVA_17 = 'openjdk version "17.0.15" 2025-04-15\n'


def check(pyspark="4.2.0", client="4.2.0", imported="4.2.0", java=JAVA_17, is_whole=False, **arguments):
    versions = {"pyspark": pyspark, "pyspark-client": client}
    check_environment(
        installed=versions.get, imported=lambda: imported, is_whole=lambda _: is_whole, java=lambda: java, **arguments
    )


def refusal(**arguments) -> str:
    with pytest.raises(EnvironmentNotReadyError) as raised:
        check(**arguments)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_this_environment_passes(monkeypatch):
    check_environment()


@pytest.mark.parametrize("client", ["4.2.0", None])
def test_equal_versions_or_pyspark_alone_pass(client):
    check(client=client)


def test_a_client_whose_files_pyspark_has_replaced_does_no_harm():
    check(pyspark="4.3.0", client="4.2.0", imported="4.3.0", is_whole=True)


def test_files_of_a_distribution_are_its_own_until_another_replaces_one(tmp_path, monkeypatch):
    files = {"spark.py": b"pass\n", "more.py": b""}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    info = tmp_path / "some_spark-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: some-spark\nVersion: 1\n")
    digests = {n: base64.urlsafe_b64encode(hashlib.sha256(d).digest()).rstrip(b"=").decode() for n, d in files.items()}
    rows = [f"{name},sha256={digests[name]},{len(data)}" for name, data in files.items()]
    (info / "RECORD").write_text("\n".join([*rows, "some_spark-1.dist-info/RECORD,,"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert has_own_files("some-spark")
    (tmp_path / "spark.py").write_bytes(b"mixed\n")
    assert not has_own_files("some-spark")
    (tmp_path / "spark.py").unlink()
    assert not has_own_files("some-spark")


def test_spark_of_a_cluster_is_too_old_for_airflows_own_environment():
    text = refusal(pyspark="3.5.9", client=None, imported="3.5.9")
    assert "Expected pyspark 4.0 or newer in Airflow's environment, found 3.5.9" in text
    assert "pip install" in text


def test_different_versions_are_mended_to_the_one_that_both_have():
    text = refusal(pyspark="4.10.0", client="4.9.1", imported="4.10.0")
    assert "pip install --force-reinstall --no-deps pyspark==4.9.1 pyspark-client==4.9.1" in text


def test_files_of_another_version_are_found_although_the_records_agree():
    text = refusal(imported="4.3.0")
    assert "4.3.0 on import" in text
    assert "pyspark==4.2.0 pyspark-client==4.2.0" in text


def test_files_of_another_version_are_found_with_one_package_alone():
    text = refusal(client=None, imported="4.1.0")
    assert text.count("==") == 1


@pytest.mark.parametrize(
    "found",
    [
        {"pyspark": None},
        {"pyspark": None, "client": None},
        {"pyspark": None, "client": None, "imported": None, "needs_java": False},
    ],
    ids=["client alone", "nothing", "nothing for Spark Connect"],
)
def test_missing_pyspark_names_the_extra(found):
    assert "airflow-provider-statecheck[pyspark]" in refusal(**found)


def test_spark_connect_needs_neither_pyspark_nor_java():
    check(pyspark=None, java=None, needs_java=False)


@pytest.mark.parametrize(
    ("java", "found"),
    [
        (None, "found none"),
        ("no java here", "found none"),
        ('java version "1.8.0_292"', "Java 1"),
        ('openjdk version "11.0.2"', "Java 11"),
    ],
    ids=["none", "unreadable", "8", "11"],
)
def test_missing_or_old_java_says_how_to_get_one(java, found):
    text = refusal(java=java)
    assert found in text
    assert "17" in text


@pytest.mark.parametrize(
    "java", ['openjdk version "17" 2021-09-14', 'openjdk version "21.0.1"', 'java version "25-ea"']
)
def test_newer_java_passes(java):
    check(java=java)


def test_below_spark_submit_java_is_not_looked_for(monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    check(java=None)


def test_java_home_without_a_java_counts_as_none(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentNotReadyError, match="found none"):
        check_environment()
