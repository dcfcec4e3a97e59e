"""Training: the loop, settings, losses, evaluation and logs; run folders, checkpoints, and trained models.

Read ``trainer`` first, then ``run_folder`` and ``checkpoints``. ``opening`` loads the model of a run or a pretrained model.
"""
