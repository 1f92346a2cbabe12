"""What checkpointing costs: measured, decided by, and bounded."""
