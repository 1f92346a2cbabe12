"""What is counted of the checkpoints of an operator, and kept after their rows are gone."""
