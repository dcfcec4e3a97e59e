"""Training and its results: the loop, settings, losses, evaluation and logs; run folders, checkpoints, and the models in them.

Read ``trainer`` first, then ``run_folder`` and ``checkpoints``. ``opening`` opens a run or a pretrained model.
"""
