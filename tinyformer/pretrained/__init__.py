"""Published weights and tokenizers, in Hugging Face's layout: reading them, and writing ours for others."""
