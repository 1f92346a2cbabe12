"""The keyed states as user functions see them."""
