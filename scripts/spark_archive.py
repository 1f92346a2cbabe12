"""
Archive of the classes that a Spark job loads, from which JVMs start in about half of the time.

Usage: ``python -m scripts.spark_archive FILE``. A JVM with ``-XX:SharedArchiveFile=FILE`` ignores an archive that does
not fit its version or its class path.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> None:
    """Run a Spark job whose JVM writes the archive when it ends."""
    archive = Path(sys.argv[1]).resolve()
    written = archive.with_suffix(".written")
    options = f"-XX:ArchiveClassesAtExit={written} -Xlog:disable"
    os.environ["JDK_JAVA_OPTIONS"] = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {options}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    local = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = local.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        _work(session, folder)
    _end_jvm(session)
    written.replace(archive)


def _end_jvm(session: SparkSession) -> None:
    """Stop the session, and wait until its JVM has written the archive."""
    jvm = cast("Any", session.sparkContext._gateway).proc
    session.stop()
    jvm.stdin.close()
    jvm.wait()


def _work(session: SparkSession, folder: str) -> None:
    """Use what stages use: files, joins, windows, functions in Python and barrier tasks."""
    from pyspark.sql import Window, functions as f

    session.range(100).withColumn("key", f.col("id") % 7).write.parquet(f"{folder}/rows")
    rows = session.read.parquet(f"{folder}/rows")
    rows.write.json(f"{folder}/json")
    session.read.json(f"{folder}/json").count()
    sorted_rows = rows.repartition(2, "key").sortWithinPartitions("key").mapInArrow(_same, rows.schema)
    sorted_rows.groupBy("key").agg(f.sum("id")).join(rows, "key").orderBy("key").collect()
    newest = f.row_number().over(Window.partitionBy("key").orderBy("id"))
    rows.withColumn("row", newest).where("row > 1").collect()
    session.createDataFrame([(1, "a", [1.0])], "a int, b string, c array<double>").write.parquet(f"{folder}/nested")
    session.sparkContext.parallelize(range(4), 2).barrier().mapPartitions(_same).collect()


def _same(rows: Any) -> Any:
    return rows


if __name__ == "__main__":
    main()
