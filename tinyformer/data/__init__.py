"""Read text and sentence pairs, mask tokens, and make batches.

Read ``text`` and ``batches`` first. Continue with ``pairs``, ``pair_files`` and ``masking``. This package imports only common/.
"""
