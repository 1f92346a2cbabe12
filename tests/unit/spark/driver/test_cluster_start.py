"""The start of an application in cluster mode, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

START = (
    "import sys; from airflow_provider_statecheck.spark.driver.cluster_start import run_script; run_script(sys.argv[1])"
)


@pytest.mark.parametrize(("is_safe", "expected"), [(False, "found beside"), (True, "not found")])
def test_an_application_imports_modules_of_its_folder_as_python_would_let_it(
    tmp_path: Path, is_safe: bool, expected: str
) -> None:
    (tmp_path / "helper_of_script.py").write_text("TEXT = 'found beside'\n")
    script = tmp_path / "script.py"
    script.write_text(
        "try:\n    from helper_of_script import TEXT\nexcept ImportError:\n    TEXT = 'not found'\n"
        "if __name__ == '__main__':\n    print(TEXT)\n"
    )
    options = ["-P"] if is_safe else []
    for command in (["-c", START, str(script)], [str(script)]):
        found = subprocess.run([sys.executable, *options, *command], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == expected
