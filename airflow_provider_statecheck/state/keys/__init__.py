"""Keys of keyed state: their types, their hash, and the key group that each belongs to."""
