"""
Checks before a stage starts: versions, packages and a shared checkpoint directory.

Three parties have to see it: this process, which writes ``_metadata``; the server or driver, which lists directories and
commits; and the executors, which write the data. A path that only looks the same would lose every snapshot.

Equal files give equal bytes, and the name carries their hash: Spark keeps files by name and refuses other bytes under a
known one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import io
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, StorageError
from airflow_provider_statecheck.spark.driver.session import runs_in_this_process
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NEEDED_ON_A_DRIVER = ("fsspec", "httpx", "pyarrow", "pyspark")


def check_driver_packages(is_installed: Callable[[str], bool] | None = None) -> None:
    """
    Refuse to start where the driver would fail later and less clearly.

    :param is_installed: Tells whether a package can be imported.
    :raises EnvironmentNotReadyError: naming what is missing.
    """
    present = is_installed or _is_importable
    missing = [name for name in NEEDED_ON_A_DRIVER if not present(name)]
    if missing:
        raise EnvironmentNotReadyError(
            f"Expected the packages {', '.join(NEEDED_ON_A_DRIVER)} in the driver's Python {sys.executable}, found no "
            f"{', no '.join(missing)}; install them there."
        )


def _is_importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


log = logging.getLogger(__name__)

_WITNESS = "written-by-the-task"
_ANSWERS = "written-by-spark"
# More tasks than most clusters have executors, so that each is likely to get one.
_WRITERS = 32
# How Java and Hadoop name trouble with files; an executor that is lost meanwhile says nothing about the path.
_FILE_TROUBLE = re.compile(
    r"PATH_NOT_FOUND|FILE_NOT_EXIST|FileNotFound|NoSuchFile|AccessControl|AccessDenied|Permission denied|Mkdirs failed"
    r"|Read-only file system|No such file"
)


def require_shared_path(spark: SparkSession, base_uri: str) -> None:
    """
    Let each party write where another one reads.

    :param spark: A session whose driver or executors may be elsewhere.
    :param base_uri: The checkpoint directory, a ``file://`` URI.
    :raises EnvironmentNotReadyError: saying who does not see it, and what to do.
    """
    base = Path(base_uri.partition("://")[2])
    with _probe_directory(base) as probe:
        word = uuid.uuid4().hex
        (probe / _WITNESS).write_text(word)
        _require_seen_by_spark(spark, probe, word, base_uri)
        _require_seen_here(spark, probe, base_uri)
    log.info("The task, the driver and the executors of Spark see one directory %s.", redact(base_uri))


@contextmanager
def _probe_directory(base: Path) -> Iterator[Path]:
    probe = base / f".probe-{uuid.uuid4().hex}"
    try:
        probe.mkdir(parents=True)
        # The server and the executors may run as another user, who writes here too.
        probe.chmod(0o777)
        yield probe
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise EnvironmentNotReadyError(
            f"Expected to write below {base}, found: {error}; give another checkpoint_dir or the right to write there."
        ) from error
    except OSError as error:
        raise StorageError(f"The checkpoint directory {base} could not be tried out: {error}") from error
    finally:
        shutil.rmtree(probe, ignore_errors=True)


def _require_seen_by_spark(spark: SparkSession, probe: Path, word: str, base_uri: str) -> None:
    with _file_trouble_means(base_uri, "Spark's driver does not see what the task writes"):
        frame = spark.read.text(f"file://{probe}/{_WITNESS}")
        frame.schema  # noqa: B018 - asks the driver to look
    with _file_trouble_means(base_uri, "an executor cannot read what the task writes"):
        lines = [row.value for row in frame.collect()]
    if lines != [word]:
        raise _not_shared(base_uri, "Spark reads something else than what the task wrote")


def _require_seen_here(spark: SparkSession, probe: Path, base_uri: str) -> None:
    answers = probe / _ANSWERS
    with _file_trouble_means(base_uri, "an executor cannot write there, or the driver does not see what it wrote"):
        spark.range(0, _WRITERS, 1, _WRITERS).write.parquet(f"file://{answers}")
    found = len(list(answers.glob("*.parquet")))
    if found != _WRITERS:
        raise _not_shared(base_uri, f"the task sees {found} of {_WRITERS} files that Spark wrote")
    try:
        shutil.rmtree(answers)
    except PermissionError as error:
        raise _not_shared(base_uri, "the task may not delete what Spark writes") from error


@contextmanager
def _file_trouble_means(base_uri: str, meaning: str) -> Iterator[None]:
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if not _FILE_TROUBLE.search(str(error)):
            raise
        raise _not_shared(base_uri, meaning) from error


def _not_shared(base_uri: str, found: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"Expected {redact(base_uri)} to be one directory for the task and for Spark's driver and executors, found that "
        f"{found}; use a path on a shared volume that all of them mount and may write to, or an object store such as "
        f"s3://."
    )


_DISTRIBUTION = "airflow-provider-statecheck"
_ROOT = Path(__file__).parents[2]
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LAUNCHER_JAR = "statecheck-python-launcher.jar"


def write_package(folder: Path) -> Path:
    """
    Write the package into a folder, unless it is there, and return its path.

    Where this process itself has the package from such a file, that one is returned.
    """
    if _ROOT.parent.is_file():
        return _ROOT.parent
    data = _package_bytes()
    digest = hashlib.sha256(data).hexdigest()[:16]
    return write_file(folder / f"{_ROOT.name}-{version(_DISTRIBUTION)}-{digest}.zip", data)


def write_launcher_jar(folder: Path) -> Path:
    """Write the jar without a class that a cluster asks for where the application is a Python file."""
    return write_file(folder / _LAUNCHER_JAR, _archive({"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\n\n"}))


@cache
def _package_bytes() -> bytes:
    files = sorted(path for path in _ROOT.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return _archive({path.relative_to(_ROOT.parent).as_posix(): path.read_bytes() for path in files})


def _archive(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def write_file(path: Path, data: bytes) -> Path:
    """Write a file that every user may read, unless it is there; nobody sees a part of it."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    # Workers may run as another user; the package is no secret.
    Path(part).chmod(0o644)
    Path(part).replace(path)
    return path


def make_ready(spark: SparkSession, storage: CheckpointStorage) -> None:
    """
    Prepare a session for a stage; nothing is to be done where all of Spark runs in this process.

    :param spark: The session, of a Spark Connect server or of a driver in this process.
    :param storage: Where the stage's bytes will go.
    :raises EnvironmentNotReadyError: if the storage is a path that not everybody sees.
    """
    if not runs_in_this_process(spark):
        ship_package(spark)
    require_reachable(spark, storage)


def require_reachable(spark: SparkSession, storage: CheckpointStorage) -> None:
    """
    Refuse a checkpoint directory that not every part of Spark sees.

    :raises EnvironmentNotReadyError: saying who does not, and what to do.
    """
    if storage.is_local and not runs_in_this_process(spark):
        require_shared_path(spark, storage.base_uri)


def ship_package(spark: SparkSession) -> None:
    """Give the executors this package; its file's name carries a hash, for a server refuses other bytes under a known one."""
    spark.addArtifacts(str(write_package(Path(_lasting_folder().name))), pyfile=True)


@functools.cache
def _lasting_folder() -> tempfile.TemporaryDirectory[str]:
    # A driver in this process serves the file from where it lies, also to executors that come later.
    return tempfile.TemporaryDirectory(prefix="statecheck-")


OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(\d+)')


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, ``None`` if there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def java_version_text() -> str | None:
    """Return what ``java -version`` says, ``None`` without a Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return None
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - our own Java
    return done.stderr + done.stdout


def imported_pyspark_version() -> str | None:
    """Return the version that the importable package ``pyspark`` claims, ``None`` if there is none."""
    try:
        return str(importlib.import_module("pyspark.version").__version__)
    except ImportError:
        return None


def check_environment(
    *,
    needs_java: bool = True,
    installed: Callable[[str], str | None] = installed_version,
    imported: Callable[[], str | None] = imported_pyspark_version,
    java: Callable[[], str | None] = java_version_text,
) -> None:
    """
    Refuse to start where Spark would fail later and less clearly.

    :param needs_java: Whether the session is a classic one; Spark Connect needs pyspark-client alone and no Java.
    :param installed: Gives the version of an installed distribution.
    :param imported: Gives the version of the importable package.
    :param java: Gives what ``java -version`` says.
    :raises EnvironmentNotReadyError: naming what is missing or does not fit, and how to mend it.
    """
    full, client = installed("pyspark"), installed("pyspark-client")
    _check_present(full, client, needs_java=needs_java)
    _check_equal(full, client, imported())
    # Below spark-submit the Java process was there before Python.
    if needs_java and "PYSPARK_GATEWAY_PORT" not in os.environ:
        _check_java(java())


def _check_present(full: str | None, client: str | None, *, needs_java: bool) -> None:
    if full is None and (needs_java or client is None):
        raise EnvironmentNotReadyError(
            "Expected the package pyspark, found none; run pip install 'airflow-provider-statecheck[pyspark]'."
        )


def _check_equal(full: str | None, client: str | None, imported: str | None) -> None:
    found = {name: v for name, v in (("pyspark", full), ("pyspark-client", client)) if v is not None}
    versions = set(found.values())
    if versions == {imported}:
        return
    # Both write the package pyspark; with unequal ones every Python UDF fails with an unreadable error. The client is
    # published later, so of two versions the older one is the one that both have.
    wanted = min(versions, key=_version_key)
    raise EnvironmentNotReadyError(
        f"Expected pyspark and pyspark-client of one version, found {' and '.join(map(' '.join, found.items()))} "
        f"installed and {imported or 'nothing'} on import; run pip install --force-reinstall --no-deps "
        f"{' '.join(f'{name}=={wanted}' for name in found)}."
    )


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _check_java(text: str | None) -> None:
    found = _VERSION.search(text or "")
    if found is None:
        raise EnvironmentNotReadyError(
            f"Expected Java {OLDEST_JAVA} or newer in JAVA_HOME or on the path, found none; install one, "
            f"for example with apt-get install openjdk-{OLDEST_JAVA}-jre-headless."
        )
    if int(found.group(1)) < OLDEST_JAVA:
        raise EnvironmentNotReadyError(
            f"Expected Java {OLDEST_JAVA} or newer, found Java {found.group(1)}; set JAVA_HOME to a newer one."
        )
