"""From a model's logits to text: sampling and beam search, with caches.

Read ``generation`` first, with the loop and the decoders, then ``sampling``, which picks a token, and ``beam_search``. This
package imports common/, data/ and models/.
"""
