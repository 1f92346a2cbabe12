"""The demo ends what it has started."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from scripts import demo


@pytest.mark.parametrize("ignores", ["", "trap '' TERM; "])
def test_what_the_demo_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignores: str) -> None:
    monkeypatch.setattr(demo, "DEMO", tmp_path)
    monkeypatch.setattr(demo, "END_SECONDS", 1.0)
    command = ["sh", "-c", f"{ignores}mkfifo fifo; echo begun; read line < fifo"]
    with (tmp_path / "log").open("ab") as log, suppress(SystemExit), demo.started(command, log) as process:
        while not (tmp_path / "log").read_text():
            pass
        sys.exit(demo.TERMINATED)
    assert process.returncode == -(signal.SIGKILL if ignores else signal.SIGTERM)
