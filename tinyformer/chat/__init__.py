"""Chat with a model: its chat template, and a cache of earlier turns.

``template`` loads a model's template. Templates are untrusted code, so ``rendering`` runs them in a separate process.
``conversation`` chats. This package imports common/, tokenizers/, models/, decoding/ and pretrained/.
"""
