"""File merging: many pieces of state in few files."""
