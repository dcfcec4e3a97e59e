"""The networks: Transformer, GPT and BERT, their layers, and recurrent models. This package imports only common/.

Start with ``gpt``, ``attention`` and ``blocks``. Continue with ``transformer``, ``bert``, ``recurrent`` and ``seq2seq``.
"""
