"""What takes a function: its derivatives, a check of its gradients, and a checkpoint that computes it again in backward."""
