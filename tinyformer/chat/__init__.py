"""Conversations with a model: its chat template, and the turns in its cache.

``template`` reads a model's template. ``rendering`` renders it in a separate process, because a template is untrusted code.
``conversation`` chats. This package imports common/, tokenizers/, models/, decoding/ and pretrained/.
"""
