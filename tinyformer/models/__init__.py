"""The networks: the Transformer, GPT and BERT, the layers they are built from, and recurrent models. They import only common/.

Start with ``gpt``, ``attention`` and ``blocks``; then ``transformer`` and ``bert``; then ``recurrent`` and ``seq2seq``.
"""
