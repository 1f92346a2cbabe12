"""Where a stage's rows come from, cut into increments."""
