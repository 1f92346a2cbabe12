"""
The files of this package that a cluster executes.

The package has what drivers and executors import, and nothing that needs Airflow. It is shipped to executors as a
reproducible zip file with a digest in its name, because Spark rejects a file with a known name and different content.
Files in a directory that others can write to are replaced unless they have the expected content, and a driver in
cluster mode verifies them when it starts; see :mod:`~.cluster_start`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import os
import stat
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib.metadata import metadata, version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from airflow_provider_statecheck.checkpoint.ids import packages_uri
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.spark.driver.application import STAGE_APPLICATION, STAGE_PROGRAM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

DISTRIBUTION = "airflow-provider-statecheck"
_ROOT = Path(__file__).parents[2]
_FOLDERS = ("checkpoint", "gateway", "metadata", "queryable", "spark", "state", "storage")
"""Subpackages that drivers and executors import."""
_OF_AIRFLOW = ("configuration.py", "get_provider_info.py", "metadata/db_manager.py", "metadata/migrations/")
"""Files that only processes of Airflow import, by the beginning of their path."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_OF_WHEEL = ("Metadata-Version", "Name", "Version", "Requires-Python")
_WHEEL = b"Wheel-Version: 1.0\nGenerator: airflow-provider-statecheck\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_SHIPPED: WeakSet[Any] = WeakSet()
"""Sessions whose executors have this package."""


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """A file with the content that this process wrote."""

    path: Path
    digest: str
    """SHA-256 of the content."""

    @classmethod
    def written(cls, path: Path, data: bytes) -> Self:
        """
        Write a world-readable file atomically, unless it has this content, and return it.

        :raises EnvironmentNotReadyError: if the file cannot be written.
        """
        digest = hashlib.sha256(data).hexdigest()
        try:
            if not _has_content(path, data):
                _write(path, data)
        except OSError as error:
            raise EnvironmentNotReadyError(
                f"Expected to write {path}, a file for the driver and the executors, found: {error}; set "
                "package_dir, or the directory of the command, to one to which only this user can write and which "
                "every worker can read."
            ) from error
        return cls(path, digest)


def ship_package(spark: SparkSession) -> None:
    """Send this package to the executors, unless the session has it."""
    # PySpark adds the file to sys.path of this process at each call.
    if spark not in _SHIPPED:
        spark.addArtifacts(str(write_package(Path(_package_folder().name)).path), pyfile=True)
        _SHIPPED.add(spark)


@functools.cache
def _package_folder() -> tempfile.TemporaryDirectory[str]:
    # Retained until the process exits, because a driver in this process serves the file to later executors.
    return tempfile.TemporaryDirectory(prefix="statecheck-")


def write_package(folder: Path) -> ShippedFile:
    """Write this package as a zip file to a folder, and return it."""
    name, data = package_file()
    return ShippedFile.written(folder / name, data)


def package_file() -> tuple[str, bytes]:
    """
    Return the name and the content of this package as a zip file.

    If this process imported the package from a zip file, it is a copy of it with the same name.
    """
    if _ROOT.parent.is_file():
        return _ROOT.parent.name, _ROOT.parent.read_bytes()
    data = package_bytes()
    return f"{_ROOT.name}-{version(DISTRIBUTION)}-{hashlib.sha256(data).hexdigest()}.zip", data


def wheel_file() -> tuple[str, bytes]:
    """
    Return the name and the content of this package as a wheel, for services that install it.

    The digest of the content is in the directory of its name, because the name of a wheel has a form of its own. Like
    the zip file, it requires nothing.
    """
    installed = metadata(DISTRIBUTION)
    folder = f"{_ROOT.name}-{installed['Version']}.dist-info"
    about = "".join(f"{name}: {installed[name]}\n" for name in _OF_WHEEL)
    files = {**_shipped(), f"{folder}/METADATA": about.encode(), f"{folder}/WHEEL": _WHEEL}
    record = "".join(f"{name},{_recorded(data)}\n" for name, data in files.items()) + f"{folder}/RECORD,,\n"
    data = _archive({**files, f"{folder}/RECORD": record.encode()})
    name = f"{_ROOT.name}-{installed['Version']}-py3-none-any.whl"
    return f"{hashlib.sha256(data).hexdigest()}/{name}", data


def _recorded(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()},{len(data)}"


def stage_file() -> tuple[str, bytes]:
    """Return the name and the content of the application that runs a stage, with its digest in the directory."""
    return f"{hashlib.sha256(STAGE_PROGRAM).hexdigest()}/{STAGE_APPLICATION}", STAGE_PROGRAM


def published_package(storage: CheckpointStorage, directory: str | None = None) -> str:
    """
    Write this package to a storage, unless it is there, and return its URI.

    The name has the digest of the content, so that drivers of several versions find theirs side by side.

    :param directory: URI of a directory, by default that for packages below the checkpoint directory.
    :raises StorageError: if the storage fails.
    """
    return publish(storage, directory or packages_uri(storage.base_uri), *package_file())


def published_wheel(storage: CheckpointStorage) -> str:
    """
    Write this package as a wheel to a storage, unless it is there, and return its URI.

    :raises StorageError: if the storage fails.
    """
    return publish(storage, packages_uri(storage.base_uri), *wheel_file())


def published_stage_application(storage: CheckpointStorage, directory: str | None = None) -> str:
    """
    Write the application file that runs a stage to a storage, unless it is there, and return its URI.

    :param directory: URI of a directory, by default that for packages below the checkpoint directory.
    :raises StorageError: if the storage fails.
    """
    return publish(storage, directory or packages_uri(storage.base_uri), *stage_file())


def publish(storage: CheckpointStorage, directory: str, name: str, data: bytes) -> str:
    """
    Write a file to a storage, unless it has this content there, and return its URI.

    :param directory: URI of the directory of the file.
    :raises StorageError: if the storage fails.
    """
    uri, storage = f"{directory}/{name}", storage.allowing(directory)
    if storage.size_or_none(uri) != len(data) or storage.read_bytes(uri) != data:
        storage.write_bytes(uri, data, overwrite=True)
    return uri


def write_launcher_jar(folder: Path) -> ShippedFile:
    """Write an empty jar, which cluster mode requires as the application, and return it."""
    data = _archive({"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\n\n"})
    return ShippedFile.written(folder / f"statecheck-python-launcher-{hashlib.sha256(data).hexdigest()}.jar", data)


def write_stage_application(folder: Path) -> Path:
    """Write the application file with which ``spark-submit`` runs a stage in client mode, and return its path."""
    # A separate folder, because Python puts the application's folder first on its module search path.
    return ShippedFile.written(folder / "stage-application" / STAGE_APPLICATION, STAGE_PROGRAM).path


def _has_content(path: Path, data: bytes) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == len(data) and path.read_bytes() == data


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # Workers may run as another user, and the package is not secret.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@cache
def package_bytes() -> bytes:
    """Return this package as a zip file; equal files give equal bytes."""
    return _archive(_shipped())


def _shipped() -> dict[str, bytes]:
    files = [*_ROOT.glob("*.py"), *chain.from_iterable((_ROOT / folder).rglob("*.py") for folder in _FOLDERS)]
    named = {path.relative_to(_ROOT).as_posix(): path for path in files}
    shipped = sorted(name for name in named if not name.startswith(_OF_AIRFLOW))
    return {f"{_ROOT.name}/{name}": named[name].read_bytes() for name in shipped}


def _archive(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
