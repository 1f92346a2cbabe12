"""What a sink has staged and not yet committed; it is part of every checkpoint until its commit is confirmed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.spark.attempt import StageAttempt

if TYPE_CHECKING:
    from airflow_provider_statecheck.spark.sinks.sink import Sink

Committable = Mapping[str, Any]


class SinkCommits:
    """
    Keeps committables by the checkpoint that they belong to, and commits those of completed ones, oldest first.

    :param sink: ``None`` for a stage without one; then there is nothing to commit ever.
    :param attempt: The registered try.
    :param restored: What :meth:`encode` gave.
    """

    def __init__(self, sink: Sink | None, attempt: StageAttempt, restored: Any = None) -> None:
        self._sink = sink
        self._attempt = attempt
        self._staged: list[Committable] = []
        self._open: dict[int, list[Committable]] = {int(n): list(each) for n, each in (restored or {}).items()}

    def stage(self, committables: Iterable[Committable]) -> None:
        """Take what the writers of an increment gave; it belongs to the next checkpoint."""
        self._staged.extend(committables)

    def assign(self, checkpoint_id: int) -> None:
        """
        Let a checkpoint have what was staged since the one before.

        It stays that checkpoint's whatever becomes of it: one that seems to have failed may be completed, and then both it
        and the next one name the same output in the same way.
        """
        if self._staged:
            self._open[checkpoint_id] = self._staged
            self._staged = []

    def encode(self) -> dict[str, Any]:
        """Return what is open as JSON."""
        return {str(checkpoint_id): list(each) for checkpoint_id, each in sorted(self._open.items())}

    @property
    def has_open(self) -> bool:
        """Tell whether anything of a checkpoint waits for its commit."""
        return bool(self._open)

    def commit(self, completed: int) -> None:
        """
        Commit all that is open, oldest first, and confirm that.

        :param completed: The checkpoint that holds it, which is complete.
        :raises StateCheckError: if the sink fails; what is open stays open.
        """
        for checkpoint_id in sorted(self._open):
            if self._sink is not None:
                self._sink.commit(checkpoint_id, self._open[checkpoint_id])
        self._attempt.confirm_commits((completed,))
        self._open = {}

    def end(self) -> None:
        """
        Confirm what earlier tries left open and this one did not go on from: the sink has replaced it.

        :raises StateCheckError: if the coordinator does not answer.
        """
        latest = self._attempt.latest
        if self._attempt.grant.effects.commits and latest is not None and not self._open:
            self._attempt.confirm_commits((latest.checkpoint_id,))
