from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from airflow_provider_statecheck.storage import filesystem

HEAVY = ("airflow", "sqlalchemy", "pyspark", "pyarrow", "pandas", "numpy", "fastapi", "pickle", "fsspec")


def test_importing_the_package_loads_nothing_heavy_and_no_filesystem() -> None:
    heavy = [name for name in HEAVY if name != "pickle"]
    program = (
        "import sys, airflow_provider_statecheck.storage.views.loading; "
        f"print([n for n in {heavy} if n in sys.modules])"
    )
    root = Path(__file__).parents[3]
    found = subprocess.run([sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_no_module_can_run_code_from_storage() -> None:
    for path in Path(filesystem.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
        called = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not imported & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
        assert not called & {"eval", "exec", "__import__"}
