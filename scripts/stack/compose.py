"""What ``docker/compose.yaml`` says, as it holds for plain processes of one machine."""

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

# What a process needs of the shell that starts it; a container has these of its image.
_KEPT = ("HOME", "JAVA_HOME", "LANG", "TZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service, with paths and hosts of this machine."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    check: tuple[str, ...]
    """The command that tells its health; none for what runs to its end."""
    needs: dict[str, str]
    """The services it waits for, and Compose's condition for each."""
    restarts: bool
    stop_signal: str
    port: str | None
    """Where its pages are."""

    @property
    def is_job(self) -> bool:
        """Tell whether the service runs to its end."""
        return not self.check


def settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of ``docker/.env``; those of the shell come first, as they do for Compose."""
    chosen = dotenv_values(DOCKER / ".env", interpolate=False)
    return {name: environ.get(name, value or "") for name, value in chosen.items()}


def read_services(folder: Path, variables: Mapping[str, str]) -> list[Service]:
    """
    Return the services in the order in which they start.

    :param folder: Where the processes live.
    :param variables: What Compose would put in for ``${NAME}``.
    :raises ValueError: for a variable that has no value, and for what plain processes cannot do as Compose does.
    """
    document = _interpolated(yaml.safe_load((DOCKER / "compose.yaml").read_text()), variables)
    services = document["services"]
    place = _Place(folder, document["x-process"], tuple(services))
    order = TopologicalSorter({name: service.get("depends_on", {}) for name, service in services.items()})
    return [place.service(name, services[name]) for name in order.static_order()]


def links(folder: Path) -> dict[Path, Path]:
    """Return what lies in the folder under another name, as a container finds it in its image or mounted."""
    document = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    named = document["x-process"]["links"]
    return {folder / name: ROOT / target.removeprefix("@") for name, target in named.items()}


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


class _Place:
    """Puts this machine's paths and addresses in the place of a container's."""

    def __init__(self, folder: Path, process: Mapping[str, Any], names: tuple[str, ...]) -> None:
        self._paths = {path: os.path.normpath(folder / there) for path, there in process["paths"].items()}
        self._path = re.compile("|".join(rf"{re.escape(path)}(?![\w.-])" for path in self._paths))
        self._names = names
        self._host = re.compile(rf"(?<=[/@])(?:{'|'.join(map(re.escape, names))})(?=:\d)")
        self._everywhere = process["environment"]

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
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        given = {name: self._here(value) for name, value in {**environment, **self._everywhere}.items()}
        return {**kept, **given, "PATH": _path(), "PYTHONUNBUFFERED": "1"}

    def _command(self, parts: list[str]) -> tuple[str, ...]:
        named = {i for i, part in enumerate(parts) if i and parts[i - 1] == "--host" and part in self._names}
        return tuple(LOOPBACK if i in named else self._here(part) for i, part in enumerate(parts))

    def _here(self, text: str) -> str:
        placed = self._path.sub(lambda found: self._paths[found.group()], text)
        return self._host.sub(LOOPBACK, placed)


def _path() -> str:
    """Return where commands are: this interpreter's, PostgreSQL's, and those of the shell."""
    return os.pathsep.join((str(Path(sys.executable).parent), str(postgres_bin()), os.environ["PATH"]))


def _check(service: Mapping[str, Any], process: Mapping[str, Any]) -> list[str]:
    if "healthcheck" not in service:
        return []
    test: list[str] = process.get("check", service["healthcheck"]["test"])
    if test[0] != "CMD":
        raise ValueError(f"expected a health check that begins with CMD, found {test}")
    return test[1:]
