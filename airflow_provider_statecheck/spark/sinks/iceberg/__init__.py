"""The parts of the sink that adds files to Iceberg tables."""
