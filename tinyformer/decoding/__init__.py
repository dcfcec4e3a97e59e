"""From a model's logits to text: sampling and beam search, with caches."""
