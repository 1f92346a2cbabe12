"""Tasks that wait for checkpoints."""
