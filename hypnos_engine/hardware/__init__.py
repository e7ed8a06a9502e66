"""What this machine has, as one frozen snapshot. Never opens a GPU in this process: a short-lived child asks."""
