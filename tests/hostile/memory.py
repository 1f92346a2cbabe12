"""Memory of a process, as Linux reports it."""

from __future__ import annotations

import re
from pathlib import Path


def memory_of(pid: int | str, name: str) -> int:
    """Return the present memory of a process (``VmRSS``) or its highest one (``VmHWM``) in KiB."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def forget_peak(pid: int | str) -> None:
    """Let the highest memory be that from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
