"""Conversations with a model: its chat template, and the turns that its cache keeps.

``template`` reads a folder's template, and has it rendered by ``rendering``, a program of its own, as a template is code of
others. ``conversation`` talks. The room imports common/, tokenizers/, models/, decoding/ and pretrained/.
"""
