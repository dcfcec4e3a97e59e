"""tinyformer: Transformers on tinytensor. Each module is one concept: gpt, attention, blocks, tokenizers, decoding, ..."""
