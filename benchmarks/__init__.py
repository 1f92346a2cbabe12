"""What this library costs, measured against peers in turn in one run."""
