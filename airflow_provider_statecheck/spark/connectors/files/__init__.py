"""Files: Parquet, CSV, JSON, and others that Spark reads."""
