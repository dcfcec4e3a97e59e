"""Convert a model's logits to text: sampling and beam search, with caches.

Read ``generation`` first (the loop and the decoders), then ``sampling`` (choosing a token) and ``beam_search``. This package
imports common/, data/ and models/.
"""
