"""From a model's logits to text: sampling and beam search, with caches.

Read ``generation`` first, the loop and its decoders, and ``sampling``, which picks the token; then ``beam_search``.
The room imports common/, data/ and models/.
"""
