"""Committables of a sink: retained by checkpoint, and committed when theirs is complete."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.stages.stage_state import PLACE
from airflow_provider_statecheck.storage.stored_json import decoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_statecheck.spark.connectors.exactly_once.places import Place
    from airflow_provider_statecheck.spark.connectors.sink import Sink

Committable = Mapping[str, Any]


class SinkCommits:
    """
    Retains committables by checkpoint, and commits those of completed checkpoints, oldest first.

    :param sink: ``None`` for a stage without a sink, which has no committables.
    :param restored: Value of :meth:`encode` in the restored checkpoint.
    :raises CorruptStateError: if the restored value is not one of :meth:`encode`.
    """

    def __init__(self, sink: Sink | None, attempt: StageAttempt, restored: Any = None) -> None:
        self._sink = sink
        self._attempt = attempt
        self._staged: list[Committable] = []
        with decoding("the commits of a sink"):
            given = {key: each for key, each in (restored or {}).items() if key != PLACE}
            opened = {int(checkpoint_id): list(each) for checkpoint_id, each in given.items()}
        self._open: dict[int, list[Committable]] = opened

    def stage(self, committables: Iterable[Committable]) -> None:
        """Add committables of an increment; they belong to the next checkpoint."""
        self._staged.extend(committables)

    def assign(self, checkpoint_id: int) -> None:
        """
        Assign the committables since the last checkpoint to a checkpoint.

        The assignment is final. A checkpoint that seems to have failed may be completed later; it and the next
        checkpoint then contain the same committables under the same checkpoint ID.
        """
        if self._staged:
            self._open[checkpoint_id] = self._staged
            self._staged = []

    def encode(self) -> dict[str, Any]:
        """Return the uncommitted committables as plain values, with the place of the sink."""
        place = place_of(self._sink)
        committables = {str(checkpoint_id): list(each) for checkpoint_id, each in sorted(self._open.items())}
        return committables if place is None else {**committables, PLACE: encode(place)}

    @property
    def has_open(self) -> bool:
        """Whether there are uncommitted committables of a checkpoint."""
        return bool(self._open)

    def texts(self) -> tuple[str, ...]:
        """Return a text about the uncommitted committables of each checkpoint, oldest first."""
        counts = ((checkpoint_id, len(each)) for checkpoint_id, each in sorted(self._open.items()))
        return tuple(f"output of checkpoint {i}: {counted(n, 'piece')}" for i, n in counts)

    def commit(self, completed: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """
        Commit all committables, oldest first, and confirm the commits to the coordinator.

        :param completed: The completed checkpoint that contains the committables.
        :raises StateCheckError: if the sink fails; the committables are retained then.
        """
        begin = monotonic()
        for checkpoint_id in sorted(self._open):
            if self._sink is not None:
                self._sink.commit(checkpoint_id, self._open[checkpoint_id])
        self._attempt.confirm_commits((completed,), monotonic() - begin)
        self._open = {}

    def end(self) -> None:
        """
        Confirm commits of earlier attempts that this attempt did not restore; the sink has replaced their output.

        :raises StateCheckError: if the coordinator does not respond.
        """
        latest = self._attempt.latest
        if self._attempt.grant.effects.commits and latest is not None and not self._open:
            self._attempt.confirm_commits((latest.checkpoint_id,))


def place_of(sink: object) -> Place | None:
    """Return the place of an opened sink; ``None`` for a sink that is not of this package, or derived from one."""
    from airflow_provider_statecheck.spark.connectors.exactly_once.committing_sink import CommittingSink

    return sink.place if isinstance(sink, CommittingSink) else None
