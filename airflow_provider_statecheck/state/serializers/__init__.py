"""How values become bytes and columns of state, and whether state of an earlier version can still be read."""
