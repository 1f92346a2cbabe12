"""An attempt that may do everything: candidates to restore, a pending checkpoint, bytes to be deleted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.unit.api.server import MAINTENANCE, ApiServer, Attempt


@dataclass
class Stage:
    """The attempt and the server that it speaks to."""

    api: ApiServer
    attempt: Attempt
    pending: int

    @classmethod
    def begin(cls, api: ApiServer) -> Stage:
        """Let a first attempt fail after three checkpoints and a second one begin its first."""
        first = api.attempt()
        for _ in range(3):
            api.complete(first)
        api.finish(first, "failed")
        attempt = api.attempt()
        return cls(api, attempt, api.trigger(attempt))

    def on(self, api: ApiServer) -> Stage:
        """Return the same stage on a server with a copy of its rows."""
        return replace(self, api=api)

    def attempt_token(self) -> str:
        return self.attempt.token

    def task_token(self) -> str:
        return self.api.task_token()

    def reading_token(self) -> str:
        return self.api.reading_token(self.attempt.job_id)

    def maintenance_token(self) -> str:
        return self.api.task_token(MAINTENANCE)
