"""Data: reading texts and sentence pairs, masking tokens, and making batches."""
