"""What a task and the coordinator's API agree on for the challenge exchange."""

from __future__ import annotations

import hashlib

CHALLENGE_KEY = "statecheck.challenge"


def challenge_of(secret: str) -> str:
    """Return what a task writes into its own task state store before it shows the secret itself."""
    return hashlib.sha256(secret.encode()).hexdigest()
