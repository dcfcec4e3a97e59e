"""From files to batches: reading texts and sentence pairs, masking tokens, padding."""
