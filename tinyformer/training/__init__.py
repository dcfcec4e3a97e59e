"""The training loop, and a run's folder: settings, losses, evaluation, checkpoints, exact resume."""
