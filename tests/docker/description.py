"""``docker/`` as it stands there, read without any help of ``scripts.stack``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
OWN_IMAGE = "airflow-provider-statecheck"
HOME = "/opt/statecheck"
"""Where everything of ours lies in a container."""

CHOICES = dict(re.findall(r"^(\w+)=(.*)$", (DOCKER / ".env").read_text(), re.MULTILINE))
AS_WRITTEN: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = AS_WRITTEN["services"]
NAMES = sorted(SERVICES)


def with_choices(value: Any) -> Any:
    """Return a part of the compose file with the values of ``docker/.env`` in it, as Compose would put them in."""
    if isinstance(value, str):
        named = re.sub(r"\$\{(\w+)\}", lambda found: CHOICES[found[1]], value)
        return named.replace("$$", "$")
    if isinstance(value, list):
        return [with_choices(item) for item in value]
    if isinstance(value, dict):
        return {name: with_choices(item) for name, item in value.items()}
    return value


def texts(value: Any) -> list[str]:
    """Return every string in a part of the compose file, the names of its mappings left out."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def in_container(service: dict[str, Any]) -> dict[str, Any]:
    """Return a service without what holds for plain processes only."""
    return {name: value for name, value in service.items() if name != "x-process"}


def is_own(service: dict[str, Any]) -> bool:
    """Tell whether a service runs in the image of ``docker/Dockerfile``."""
    return str(service["image"]).startswith(f"{OWN_IMAGE}:")
