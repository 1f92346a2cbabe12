"""State backends: what keeps state while a stage runs, and where it goes when a checkpoint is taken."""
