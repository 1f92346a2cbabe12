"""Where a stage's output goes: exactly once, with the checkpoints."""
