"""The parts of the sink and the source of Delta tables."""
