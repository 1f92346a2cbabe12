"""Keys of keyed state: types, hashes and key groups."""
