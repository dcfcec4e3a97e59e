"""The folder of a run: its settings and checkpoints, its lock, and which program made it.

Read ``run_folder`` first, then ``checkpoints``, ``lock`` and ``makers``. The room imports common/ alone.
"""
