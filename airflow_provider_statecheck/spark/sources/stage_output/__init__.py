"""What the sink of another stage has committed, checkpoint by checkpoint."""
