"""State backends: contract, in-memory backends, full snapshots and loading by name."""
