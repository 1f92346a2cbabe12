"""What a fresh interpreter loads, untouched by what the test session has imported."""

from __future__ import annotations

import json
import subprocess
import sys

_PROBE = """
import json, sys
before = set(sys.modules)
{statements}
print()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def modules_loaded_by(statements: str) -> set[str]:
    """Return the full names of the modules that running the statements adds."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE.format(statements=statements)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))
