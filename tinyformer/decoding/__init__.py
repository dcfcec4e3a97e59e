"""From a model's logits to text: sampling and beam search, with caches.

Read ``sampling`` first, then ``beam_search`` with ``beam_rules``. ``logits_rules`` and ``token_rules`` say which tokens may be
written. The room imports common/, data/ and models/.
"""
