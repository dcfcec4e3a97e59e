"""Training: the loop, settings, losses, evaluation, the folder of a run, and checkpoints."""
