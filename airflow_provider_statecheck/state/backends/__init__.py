"""State backends: contract, backends with full snapshots, and loading by name."""
