"""Types, schemas, partitions and files of tables, for sources, sinks and snapshots alike."""
