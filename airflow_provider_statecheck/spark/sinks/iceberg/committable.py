"""What one Spark task hands to the driver so that its files become part of an Iceberg table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_statecheck.spark.sinks.task_committable import TaskCommittable

_MARK = "iceberg"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergCommittable(TaskCommittable):
    """All files of one task."""

    KIND: ClassVar[str] = "a committable of an Iceberg sink"

    files: tuple[Mapping[str, Any], ...]
    """As ``encode_data_file`` gives them."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**TaskCommittable.to_json(self), "kind": _MARK}

    @classmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        if document["kind"] != _MARK:
            raise ValueError(document["kind"])
        return {"files": tuple(dict(file) for file in document["files"])}
