"""Types of state in a few words, from their snapshots alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot


def describe(snapshot: SerializerSnapshot) -> str:
    """Return a type for people, such as ``record(id int64, tags list of string)``."""
    return _describe(snapshot.class_id, snapshot.config)


def _describe(class_id: str, config: Mapping[str, Any]) -> str:
    try:
        return _described(class_id, config)
    except (LookupError, TypeError):
        # A newer version may write another config.
        return class_id


def _described(class_id: str, config: Mapping[str, Any]) -> str:
    if class_id == "arrow":
        return str(config["type"])
    if class_id == "optional":
        return f"optional {_child(config['value'])}"
    if class_id == "collection":
        return f"{config['collection']} of {_child(config['element'])}"
    if class_id == "dict":
        return f"dict of {_child(config['key'])} to {_child(config['value'])}"
    if class_id in ("record", "key"):
        fields = ", ".join(f"{field['name']} {_child(field['type'])}" for field in config["fields"])
        return f"{class_id}({fields})"
    if class_id == "enum":
        return f"enum({', '.join(config['names'])})"
    return f"{_child(config['value'])} with a time to live" if class_id == "ttl" else class_id


def _child(encoded: Any) -> str:
    return encoded if isinstance(encoded, str) else _describe(encoded["class_id"], encoded["config"])
