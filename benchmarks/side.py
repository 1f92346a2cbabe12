"""One side of a comparison: a process with a session that stays, so that starting it is in no reading."""

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
    Asks a process, which is started with the first request and after it had to be stopped.

    :param module: What it runs.
    :param log: Where it writes what it has to say.
    :param python: The interpreter.
    :param arguments: For the process.
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
        Return the answer to a request.

        :param within: After how many seconds the process is stopped, and the answer is ``None``.
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
            raise RuntimeError(f"Expected an answer to {request}, found that the process ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def is_running(self) -> bool:
        """Tell whether the process is there."""
        return self._process is not None

    def seconds(self, *, within: float | None = None, **request: Any) -> float:
        """Return how long a request took by what it says itself, or the limit where it did not finish."""
        found = self.ask(within=within, **request)
        return float(within or 0.0) if found is None else float(found["seconds"])

    def stop(self) -> None:
        """End the process with all that it started."""
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
                    # Spark's own Python workers would otherwise be whatever is first on the path.
                    env={**os.environ, "PYSPARK_PYTHON": self._command[0]},
                    start_new_session=True,
                )
        return self._process

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]
