"""The folder of a run: its settings and checkpoints, its lock, and which program made it."""
