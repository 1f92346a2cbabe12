"""Tries of a pipeline in processes that can be killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Tries:
    """Runs tries of a pipeline in children of the zygote."""

    process: subprocess.Popen[str]
    work: Path

    @classmethod
    def start(cls, work: Path, jvm: dict[str, str]) -> Tries:
        """
        Start a zygote.

        :param jvm: Environment with which its children use a JVM.
        """
        root = Path(__file__).parents[2]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, **jvm, "PYTHONPATH": str(root)},
        )
        return cls(process, work)

    def close(self) -> None:
        """End the zygote."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def run(self, **command: Any) -> int:
        """Run one try and return its exit status."""
        (self.work / "result.json").unlink(missing_ok=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"work": str(self.work), **command}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def outcome(self) -> dict[str, Any]:
        """Return what the last try gave."""
        return dict(json.loads((self.work / "result.json").read_text()))

    def reset(self, prepared: Path | None) -> None:
        """Begin with an empty folder, or with one as a failed try left it; always under one path, which rows name."""
        shutil.rmtree(self.work, ignore_errors=True)
        if prepared is None:
            self.work.mkdir()
        else:
            shutil.copytree(prepared, self.work)
