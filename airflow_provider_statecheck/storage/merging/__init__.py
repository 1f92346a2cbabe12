"""File merging: many pieces of state in few files, so that a store is not flooded with small ones."""
