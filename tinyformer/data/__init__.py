"""Reading texts and sentence pairs, masking tokens, and making batches.

Read ``text`` and ``batches`` first, then ``pairs`` and ``pair_files``, then ``masking``. This package imports only common/.
"""
