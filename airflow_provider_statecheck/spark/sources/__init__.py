"""Sources of a stage, each cut into splits and increments."""
