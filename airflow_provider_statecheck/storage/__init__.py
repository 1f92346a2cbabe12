"""Storage of checkpoints on any fsspec filesystem: files, metadata and JSON state values."""
