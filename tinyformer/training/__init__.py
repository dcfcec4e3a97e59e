"""Training: the loop, settings, losses, evaluation and logs.

Read ``trainer`` first: the loop. Then ``replica`` (one rank's part of a step), ``losses``, ``evaluation``, and ``events`` with
``logging``. The room imports common/, data/, models/ and runs/, where checkpoints are.
"""
