"""
Daemon of Spark's Python workers that has imported what they need before it forks them.

A worker of the original daemon imports pandas and pyarrow, and compiles PySpark from its archive, for each of its tasks
anew.
"""

from __future__ import annotations

import gc
from importlib import import_module

from pyspark.daemon import manager

for _name in ("pandas", "pyarrow.dataset", "pyarrow.parquet", "pyspark.sql.pandas.serializers", "pyspark.worker"):
    import_module(_name)

if __name__ == "__main__":
    # A worker collects garbage after each task, which need not visit all modules.
    gc.freeze()
    manager()
