"""
Checks before a stage starts: versions, packages and a shared checkpoint directory.

A local checkpoint directory must be the same directory for three parties: this process, which writes ``_metadata``; the
Spark server or driver, which lists directories and commits; and the executors, which write the data. Otherwise the
snapshots would be lost.
"""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, StorageError
from airflow_provider_statecheck.spark.driver.packages import OF_EXECUTOR_SNAPSHOTS, check_driver_packages
from airflow_provider_statecheck.spark.driver.session import runs_in_this_process
from airflow_provider_statecheck.spark.driver.shipped_files import ship_package
from airflow_provider_statecheck.spark.snapshots.dataframes import HadoopFilesystems
from airflow_provider_statecheck.storage.failures import local_failures
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

OLDEST_JAVA = 17
OLDEST_SPARK = 4
"""The oldest Spark in Airflow's own environment; drivers on clusters may have 3.5."""
_JAVA_VERSION = re.compile(r'version "(\d+)')

_WITNESS = "written-by-the-task"
_ANSWERS = "written-by-spark"
# More tasks than most clusters have executors, which makes it likely that every executor gets a task.
_WRITERS = 32
# File errors of Java and Hadoop; other errors, such as a lost executor, are no evidence about the path.
_FILE_ERROR = re.compile(
    r"PATH_NOT_FOUND|FILE_NOT_EXIST|FileNotFound|NoSuchFile|AccessControl|AccessDenied|Permission denied|Mkdirs failed"
    r"|Read-only file system|No such file"
)


def make_ready(spark: SparkSession, storage: CheckpointStorage) -> None:
    """
    Prepare a session for a stage: ship this package to the executors and check the checkpoint directory.

    :param spark: Session of a Spark Connect server or of a driver in this process.
    :raises EnvironmentNotReadyError: if the storage is a local path that is not shared.
    """
    if not runs_in_this_process(spark):
        ship_package(spark)
    require_reachable(spark, storage)


def require_reachable(spark: SparkSession, storage: CheckpointStorage) -> None:
    """
    Check that every part of Spark can access the checkpoint directory.

    :raises EnvironmentNotReadyError: if the directory is a local path that is not shared or not writable, or the
        driver lacks a package to have executors write there.
    :raises StorageError: if the disk of the directory is read-only.
    """
    if not storage.is_local:
        _require_packages_of_executor_snapshots(spark, storage)
    elif runs_in_this_process(spark):
        _require_writable(_local_path(storage.base_uri))
    else:
        require_shared_path(spark, storage.base_uri)


def _require_packages_of_executor_snapshots(spark: SparkSession, storage: CheckpointStorage) -> None:
    # Only where one is missing: a Spark Connect server is asked for its filesystems over the network.
    is_complete = all(importlib.util.find_spec(name) for name in OF_EXECUTOR_SNAPSHOTS)
    if not is_complete and HadoopFilesystems().spark_uri(spark, storage.base_uri) is None:
        check_driver_packages(*OF_EXECUTOR_SNAPSHOTS)


def _local_path(base_uri: str) -> Path:
    return Path(base_uri.partition("://")[2])


def _require_writable(base: Path) -> None:
    nearest = next(path for path in (base, *base.parents) if os.path.exists(path))  # noqa: PTH110 - False if forbidden
    with local_failures(base):
        if os.statvfs(nearest).f_flag & os.ST_RDONLY:
            # As the system mounts a disk with errors; a retry finds it repaired, or runs on another machine.
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(nearest))
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise EnvironmentNotReadyError(
            f"Expected to write below {base}, found that {nearest} is no writable directory; use another "
            "checkpoint_dir or grant write permission."
        )


def require_shared_path(spark: SparkSession, base_uri: str) -> None:
    """
    Check that the task, the driver and the executors share a directory, by writing and reading test files.

    :param spark: Session whose driver or executors may run on other machines.
    :param base_uri: ``file://`` URI of the checkpoint directory.
    :raises EnvironmentNotReadyError: if the directory is not shared.
    """
    with _probe_directory(_local_path(base_uri)) as probe:
        content = uuid.uuid4().hex
        (probe / _WITNESS).write_text(content)
        _require_readable_by_spark(spark, probe, content, base_uri)
        _require_writable_by_spark(spark, probe, base_uri)
    log.info("The task, the driver and the executors of Spark share the directory %s.", redact(base_uri))


@contextmanager
def _probe_directory(base: Path) -> Iterator[Path]:
    probe = base / f".probe-{uuid.uuid4().hex}"
    try:
        probe.mkdir(parents=True)
        # The server and the executors may run as another user and write to this directory.
        probe.chmod(0o777)
        yield probe
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise EnvironmentNotReadyError(
            f"Expected to write below {base}, found: {error}; use another checkpoint_dir or grant write permission."
        ) from error
    except OSError as error:
        raise StorageError(f"The checkpoint directory {base} could not be tested: {error}") from error
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def _require_readable_by_spark(spark: SparkSession, probe: Path, content: str, base_uri: str) -> None:
    with _reporting_file_errors(base_uri, "Spark's driver cannot read the files of the task"):
        frame = spark.read.text(f"file://{probe}/{_WITNESS}")
        frame.schema  # noqa: B018 - makes the driver list the file
    with _reporting_file_errors(base_uri, "an executor cannot read the files of the task"):
        lines = [row.value for row in frame.collect()]
    if lines != [content]:
        raise _not_shared(base_uri, "Spark reads other content than the task wrote")


def _require_writable_by_spark(spark: SparkSession, probe: Path, base_uri: str) -> None:
    answers = probe / _ANSWERS
    with _reporting_file_errors(base_uri, "an executor cannot write files, or the driver cannot read them"):
        spark.range(0, _WRITERS, 1, _WRITERS).write.parquet(f"file://{answers}")
    found = len(list(answers.glob("*.parquet")))
    if found != _WRITERS:
        raise _not_shared(base_uri, f"the task finds {found} of {_WRITERS} files that Spark wrote")
    try:
        shutil.rmtree(answers)
    except PermissionError as error:
        raise _not_shared(base_uri, "the task may not delete the files of Spark") from error


@contextmanager
def _reporting_file_errors(base_uri: str, finding: str) -> Iterator[None]:
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if not _FILE_ERROR.search(str(error)):
            raise
        raise _not_shared(base_uri, finding) from error


def _not_shared(base_uri: str, finding: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"Expected {redact(base_uri)} to be one directory for the task and for Spark's driver and executors, found "
        f"that {finding}; use a path on a shared volume that all of them can write to, or an object store such as "
        "s3://."
    )


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, ``None`` if there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def java_version_text() -> str | None:
    """Return the output of ``java -version``, ``None`` if Java is not installed."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return None
    result = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - trusted path
    return result.stderr + result.stdout


def imported_pyspark_version() -> str | None:
    """Return the version of the importable package ``pyspark``, ``None`` if there is none."""
    try:
        return str(importlib.import_module("pyspark.version").__version__)
    except ImportError:
        return None


def has_own_files(distribution: str) -> bool:
    """
    Return whether the Python files of an installed distribution are those that it was installed with.

    ``pyspark`` and ``pyspark-client`` install the same files, and an installer that works in parallel can mix them.
    """
    found = metadata.distribution(distribution)
    # Distribution.files leaves out missing files in some versions.
    record = csv.reader((found.read_text("RECORD") or "").splitlines())
    return all(
        digest == _digest(Path(str(found.locate_file(name)))) for name, digest, _ in record if name.endswith(".py")
    )


def _digest(path: Path) -> str | None:
    """Return the digest of a file as a ``RECORD`` has it, ``None`` if the file is missing."""
    try:
        digest = hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def check_environment(
    *,
    needs_java: bool = True,
    installed: Callable[[str], str | None] = installed_version,
    imported: Callable[[], str | None] = imported_pyspark_version,
    is_whole: Callable[[str], bool] = has_own_files,
    java: Callable[[], str | None] = java_version_text,
) -> None:
    """
    Check Java and the installed versions of pyspark.

    :param needs_java: Whether the session starts a JVM; Spark Connect needs only pyspark-client.
    :param installed: Function that returns the version of a distribution.
    :param imported: Function that returns the version of the importable package.
    :param is_whole: Function that returns whether no other distribution replaced files of one.
    :param java: Function that returns the output of ``java -version``.
    :raises EnvironmentNotReadyError: if a requirement is missing or has an incompatible version.
    """
    full, client = installed("pyspark"), installed("pyspark-client")
    _check_present(full, client, needs_java=needs_java)
    _check_equal(full, client, imported(), is_whole)
    _check_supported(full or client)
    # spark-submit starts the JVM before Python.
    if needs_java and "PYSPARK_GATEWAY_PORT" not in os.environ:
        _check_java(java())


def _check_present(full: str | None, client: str | None, *, needs_java: bool) -> None:
    if full is None and (needs_java or client is None):
        raise EnvironmentNotReadyError(
            "Expected the package pyspark, found none; run pip install 'airflow-provider-statecheck[pyspark]'."
        )


def _check_equal(full: str | None, client: str | None, imported: str | None, is_whole: Callable[[str], bool]) -> None:
    found = {name: v for name, v in (("pyspark", full), ("pyspark-client", client)) if v is not None}
    versions = set(found.values())
    if versions == {imported} or (imported == full and is_whole("pyspark")):
        # A client of another version does no harm if pyspark has overwritten all its files.
        return
    # Both distributions install the package pyspark; with different versions, every Python UDF fails with an obscure
    # error. The client is published later, so the older version is available for both.
    wanted = min(versions, key=lambda each: [int(number) for number in re.findall(r"\d+", each)])
    raise EnvironmentNotReadyError(
        f"Expected pyspark and pyspark-client of one version, found {' and '.join(map(' '.join, found.items()))} "
        f"installed and {imported or 'nothing'} on import; run pip install --force-reinstall --no-deps "
        f"{' '.join(f'{name}=={wanted}' for name in found)}."
    )


def _check_supported(version: str | None) -> None:
    if version is not None and int(version.partition(".")[0]) < OLDEST_SPARK:
        raise EnvironmentNotReadyError(
            f"Expected pyspark {OLDEST_SPARK}.0 or newer in Airflow's environment, found {version}; run pip install "
            "--upgrade 'airflow-provider-statecheck[pyspark]'. Only a driver on a cluster may have Spark 3.5."
        )


def _check_java(text: str | None) -> None:
    found = _JAVA_VERSION.search(text or "")
    if found is None:
        raise EnvironmentNotReadyError(
            f"Expected Java {OLDEST_JAVA} or newer in JAVA_HOME or on the path, found none; install one, "
            f"for example with apt-get install openjdk-{OLDEST_JAVA}-jre-headless."
        )
    if int(found.group(1)) < OLDEST_JAVA:
        raise EnvironmentNotReadyError(
            f"Expected Java {OLDEST_JAVA} or newer, found Java {found.group(1)}; set JAVA_HOME to a newer version."
        )
