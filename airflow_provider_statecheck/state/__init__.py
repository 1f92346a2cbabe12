"""State backends: state of running stages, and its snapshots in checkpoints."""
