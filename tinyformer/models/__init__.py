"""The networks: attention, blocks and positions, the Transformer, GPT and BERT that are built from them, and recurrent ones.

Read ``gpt`` first, with ``attention`` and ``blocks``; then ``transformer`` and ``bert``; then ``recurrent`` and ``seq2seq``.
The room imports common/ alone.
"""
