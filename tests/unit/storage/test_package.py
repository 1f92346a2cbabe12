from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import airflow_provider_statecheck

HEAVY = ("airflow", "sqlalchemy", "pyspark", "pyarrow", "pandas", "numpy", "fastapi", "pickle", "fsspec")


def test_importing_the_package_loads_nothing_heavy_and_no_filesystem() -> None:
    heavy = [name for name in HEAVY if name != "pickle"]
    program = (
        "import sys, airflow_provider_statecheck.storage.views.checkpoint_storages; "
        f"print([n for n in {heavy} if n in sys.modules])"
    )
    root = Path(__file__).parents[3]
    found = subprocess.run([sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


_RUNS_CODE = {
    "pickle": r"(?:pickle|marshal|shelve|dill|cloudpickle|joblib|jsonpickle)",
    "serializers of Spark": r"pyspark\.(?:core\.)?(?:serializers|cloudpickle)",
    "programs": r"(?:runpy|code|codeop|imp)",
}
_CALLS = re.compile(r"eval|exec|compile|__import__|import_module|util\.\w+|(?:.*\.)?unsafe_load|(?:.*\.)?exec_module")
_KNOWN = {
    ("__init__.py", "import_module"): "the modules of this package",
    ("lazy.py", "import_module"): "libraries",
    ("gateway/in_process.py", "import_module"): "modules of this package",
    ("spark/driver/readiness.py", "import_module"): "PySpark",
    ("spark/driver/readiness.py", "util.find_spec"): "libraries",
    ("spark/driver/packages.py", "util.find_spec"): "libraries",
    ("spark/connectors/sql/limits.py", "import_module"): "psycopg2",
    ("storage/views/checkpoint_storages.py", "import_module"): "a name in a setting",
    ("spark/stages/planning.py", "import_module"): "the stage that an operator names",
    ("spark/fingerprint.py", "import_module"): "a module that a function of the running program imports",
    ("spark/fingerprint.py", "util.find_spec"): "the same",
    ("spark/loop_code.py", "compile"): "the syntax of the running program, which does not run again",
    ("spark/driver/cluster_start.py", "exec"): "the application that the command line of a driver names",
    ("spark/driver/cluster_start.py", "compile"): "the same",
    ("spark/stages/preparation.py", "serializers of Spark"): "the functions of the running program",
    ("spark/plan_digest.py", "serializers of Spark"): "the functions in the plans of the running program",
    ("state/bounded_process.py", "pickle"): "what a server sends to a process that it starts",
    ("state/serializers/record_serializer.py", "eval"): "comparisons with the declared types of columns",
}
"""Modules that can run code, and whose code it is."""


def test_no_module_can_run_code_from_storage() -> None:
    root = Path(airflow_provider_statecheck.__file__).parent
    modules = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}
    found = {(name, what) for name, text in modules.items() for what in _ways_to_run_code(ast.parse(text))}
    assert {each for each in found if not each[0].startswith("testing/")} == _KNOWN.keys()


def _ways_to_run_code(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for name in _imported(node):
            yield from (kind for kind, names in _RUNS_CODE.items() if re.fullmatch(rf"{names}(?:\..*)?", name))
        if isinstance(node, ast.Call) and _CALLS.fullmatch(called := ast.unparse(node.func).removeprefix("importlib.")):
            yield called


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield str(node.module)
        yield from (f"{node.module}.{each.name}" for each in node.names)
