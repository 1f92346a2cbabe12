"""
The package as one file, for drivers and executors that do not have it.

Equal files give equal bytes, and the name carries their hash: Spark keeps files by name and refuses other bytes under a
known one.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

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
