"""What one Spark task hands to the driver, whatever the sink: who it is of, and what is to be committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from airflow_provider_statecheck.exceptions import CorruptStateError

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCommittable(ABC):
    """The output of one task; a task without output has one too, which tells which attempt took the checkpoint."""

    KIND: ClassVar[str]
    """What it is, for messages."""

    lineage: str
    epoch: int
    subtask: int

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"format_version": FORMAT_VERSION, **fields}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """
        Return what a task handed over.

        :raises CorruptStateError: if it is something else.
        """
        try:
            if int(document["format_version"]) != FORMAT_VERSION:
                raise ValueError(document["format_version"])  # noqa: TRY301 - told below with all the other ways
            return cls(
                lineage=str(document["lineage"]),
                epoch=int(document["epoch"]),
                subtask=int(document["subtask"]),
                **cls._output(document),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptStateError(
                f"Expected {cls.KIND} of format {FORMAT_VERSION}, found {str(document)[:100]!r}; restore with the version and "
                "the kind of sink that wrote it, or from another checkpoint."
            ) from error

    @classmethod
    @abstractmethod
    def _output(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that only this kind has; errors of plain Python mean that it is something else."""
