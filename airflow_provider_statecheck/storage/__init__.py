"""Where bytes go: any fsspec filesystem."""
