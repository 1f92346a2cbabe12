"""The parts of a coordinator of checkpoints over several operators."""
