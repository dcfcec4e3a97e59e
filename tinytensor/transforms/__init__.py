"""What takes a function: its derivatives, a check of its gradients, and a checkpoint that computes it again in backward.

Read ``gradcheck`` first, then ``checkpoint`` and ``derivatives``. The room imports ops/ and what these stand on.
"""
