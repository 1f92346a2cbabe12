"""Side of a comparison: a long-running process, which excludes its start from the measurements."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parent.parent


class Side:
    """
    Process that answers requests; it starts with the first request, and again after it was stopped.

    :param module: Module to run.
    :param log: File for its standard error.
    :param python: Python interpreter.
    :param arguments: Arguments of the process.
    """

    def __init__(self, module: str, log: Path, *, python: str = sys.executable, arguments: Sequence[str] = ()) -> None:
        self._command = [python, "-W", "ignore", "-m", module, *arguments]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ask(self, *, within: float | None = None, **request: Any) -> dict[str, Any] | None:
        """
        Return the reply to a request, ``None`` if the process exceeded the time limit and was stopped.

        :param within: Time limit in seconds.
        :raises RuntimeError: if the process ended.
        """
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], within)[0]:
            self.stop()
            return None
        line = process.stdout.readline()
        if not line:
            self.stop()
            raise RuntimeError(f"Expected a reply to {request}, found that the process ended: {self._end_of_log()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None

    def seconds(self, *, within: float | None = None, **request: Any) -> float:
        """Return the duration of a request that the process reports, or the limit if it was exceeded."""
        found = self.ask(within=within, **request)
        return float(within or 0.0) if found is None else float(found["seconds"])

    def stop(self) -> None:
        """Kill the process and its descendants."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    self._command,
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    # Without it, Spark's Python workers use the first python3 on the path.
                    env={**os.environ, "PYSPARK_PYTHON": self._command[0]},
                    start_new_session=True,
                )
        return self._process

    def _end_of_log(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]
