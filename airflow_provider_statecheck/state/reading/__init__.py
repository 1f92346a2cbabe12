"""State of checkpoints as data: whole states as Arrow tables, without the code that wrote them."""
