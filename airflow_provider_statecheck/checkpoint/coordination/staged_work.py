"""Work in stages on an executor: what is in one stage may run at once, the next begins when all of it has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

Job = Callable[[], None]


class StagedWork:
    """
    Runs every job, whatever became of those before it, and holds no thread of the executor to wait for another.

    :param executor: Where the jobs run.
    :param stages: The jobs; none of a stage begins before all of the earlier ones have ended.
    :param ended: Is given what the jobs raised; called exactly once, after the last.
    :param is_parallel: Whether the jobs of one stage run at the same time.
    """

    def __init__(
        self,
        executor: Executor,
        stages: Sequence[Sequence[Job]],
        ended: Callable[[list[Exception]], None],
        *,
        is_parallel: bool = True,
    ) -> None:
        self._executor = executor
        stages = [[job for stage in stages for job in stage]] if not is_parallel else stages
        self._waiting = [stage for stage in stages if stage] or [[_nothing]]
        self._is_parallel = is_parallel
        self._ended = ended
        self._lock = threading.Lock()
        self._running = 0
        self._errors: list[Exception] = []

    def start(self) -> None:
        """Begin with the first stage and return."""
        stage = self._waiting.pop(0)
        bundles = [[job] for job in stage] if self._is_parallel else [list(stage)]
        self._running = len(bundles)
        for bundle in bundles:
            self._submit(bundle)

    def _submit(self, jobs: Sequence[Job]) -> None:
        try:
            self._executor.submit(self._run, jobs)
        except RuntimeError as error:
            # The executor was shut down: nobody will run them.
            self._finish([error])

    def _run(self, jobs: Sequence[Job]) -> None:
        errors: list[Exception] = []
        for job in jobs:
            try:
                job()
            except Exception as error:
                errors.append(error)
        self._finish(errors)

    def _finish(self, errors: list[Exception]) -> None:
        with self._lock:
            self._errors += errors
            self._running -= 1
            is_stage_over = self._running == 0
        if not is_stage_over:
            return
        if self._waiting:
            self.start()
        else:
            self._ended(self._errors)


def _nothing() -> None:
    """Stand for a piece of work that has nothing to do."""
