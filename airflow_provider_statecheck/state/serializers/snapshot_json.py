"""Snapshots of serializers as JSON and back, nested ones too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot


def encode_snapshot(snapshot: SerializerSnapshot) -> dict[str, Any]:
    """Return a snapshot as JSON."""
    return {"class_id": snapshot.class_id, "version": snapshot.version, "config": dict(snapshot.config)}


def decode_snapshot(encoded: Mapping[str, Any]) -> SerializerSnapshot:
    """
    Return the snapshot that was encoded, also one of a class that nobody knows here.

    :raises CorruptStateError: for JSON that :func:`encode_snapshot` does not make.
    """
    try:
        class_id, version, config = encoded["class_id"], encoded["version"], encoded["config"]
    except (LookupError, TypeError) as error:
        raise CorruptStateError(f"Expected the snapshot of a serializer, found {encoded!r:.200}.") from error
    if not (isinstance(class_id, str) and isinstance(version, int) and isinstance(config, Mapping)):
        raise CorruptStateError(f"Expected the snapshot of a serializer, found {encoded!r:.200}.")
    return SerializerSnapshot(class_id=class_id, version=version, config=config)
