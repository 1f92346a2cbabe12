"""Services of ``docker/compose.yaml``, translated to local processes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from string import Template
from typing import Any

import yaml
from dotenv import dotenv_values

from scripts.stack.postgres import postgres_bin

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
LOOPBACK = "127.0.0.1"

# Variables inherited from the shell; a container has them in its image.
_INHERITED = ("HOME", "JAVA_HOME", "LANG", "TZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Service with the paths and hosts of this machine."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    check: tuple[str, ...]
    """Command of the health check; empty for a job."""
    needs: dict[str, str]
    """Services it depends on, with the condition of Compose for each."""
    restarts: bool
    stop_signal: str
    port: str | None
    """Port of its pages."""

    @property
    def is_job(self) -> bool:
        """Whether the service is expected to end."""
        return not self.check


def settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of ``docker/.env``, overridden by those of the shell, as in Compose."""
    defaults = dotenv_values(DOCKER / ".env", interpolate=False)
    return {name: environ.get(name, value or "") for name, value in defaults.items()}


def read_services(folder: Path, variables: Mapping[str, str]) -> list[Service]:
    """
    Return the services in start order.

    :param folder: Folder of the processes.
    :param variables: Values for ``${NAME}``.
    :raises ValueError: if a variable has no value, or a setting is not supported for local processes.
    """
    document = _interpolated(yaml.safe_load((DOCKER / "compose.yaml").read_text()), variables)
    services = document["services"]
    translation = _Translation(folder, document["x-process"], tuple(services))
    order = TopologicalSorter({name: service.get("depends_on", {}) for name, service in services.items()})
    return [translation.service(name, services[name]) for name in order.static_order()]


def links(folder: Path) -> dict[Path, Path]:
    """Return the symbolic links of the folder and their targets, which replace mounts and files of the image."""
    document = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    targets = document["x-process"]["links"]
    return {folder / name: ROOT / target.removeprefix("@") for name, target in targets.items()}


def _interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _substituted(value, variables)
    if isinstance(value, list):
        return [_interpolated(item, variables) for item in value]
    if isinstance(value, dict):
        return {name: _interpolated(item, variables) for name, item in value.items()}
    return value


def _substituted(text: str, variables: Mapping[str, str]) -> str:
    try:
        return Template(text).substitute(variables)
    except KeyError as missing:
        name = missing.args[0]
        raise ValueError(f"expected a value of ${{{name}}}, found none; add it to docker/.env") from None
    except ValueError as error:
        raise ValueError(f"expected ${{NAME}} or $$ in {text!r}, found another form") from error


class _Translation:
    """Replaces the paths and hosts of containers by those of this machine."""

    def __init__(self, folder: Path, process: Mapping[str, Any], names: tuple[str, ...]) -> None:
        self._paths = {path: os.path.normpath(folder / local) for path, local in process["paths"].items()}
        self._path = re.compile("|".join(rf"{re.escape(path)}(?![\w.-])" for path in self._paths))
        self._names = names
        self._host = re.compile(rf"(?<=[/@])(?:{'|'.join(map(re.escape, names))})(?=:\d)")
        self._common_environment = process["environment"]

    def service(self, name: str, service: Mapping[str, Any]) -> Service:
        process = service.get("x-process", {})
        environment = {**service.get("environment", {}), **process.get("environment", {})}
        ports = service.get("ports", [])
        return Service(
            name=name,
            command=self._command(process.get("command", service["command"])),
            environment=self._environment(environment),
            check=self._command(_check(service, process)),
            needs={other: how["condition"] for other, how in service.get("depends_on", {}).items()},
            restarts=process.get("restart", service.get("restart", "no")) != "no",
            stop_signal=service.get("stop_signal", "SIGTERM").removeprefix("SIG"),
            port=ports[0].rsplit(":", 1)[1] if ports else None,
        )

    def _environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        own = {name: self._local(value) for name, value in {**environment, **self._common_environment}.items()}
        return {**inherited, **own, "PATH": _path(), "PYTHONUNBUFFERED": "1"}

    def _command(self, parts: list[str]) -> tuple[str, ...]:
        hosts = {i for i, part in enumerate(parts) if i and parts[i - 1] == "--host" and part in self._names}
        return tuple(LOOPBACK if i in hosts else self._local(part) for i, part in enumerate(parts))

    def _local(self, text: str) -> str:
        with_paths = self._path.sub(lambda found: self._paths[found.group()], text)
        return self._host.sub(LOOPBACK, with_paths)


def _path() -> str:
    """Return the search path: this interpreter's folder, PostgreSQL's folder, and the path of the shell."""
    return os.pathsep.join((str(Path(sys.executable).parent), str(postgres_bin()), os.environ["PATH"]))


def _check(service: Mapping[str, Any], process: Mapping[str, Any]) -> list[str]:
    if "healthcheck" not in service:
        return []
    test: list[str] = process.get("check", service["healthcheck"]["test"])
    if test[0] != "CMD":
        raise ValueError(f"expected a health check that starts with CMD, found {test}")
    return test[1:]
