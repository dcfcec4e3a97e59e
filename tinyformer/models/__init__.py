"""The networks: attention, blocks and positions, and the Transformer, GPT and BERT that are built from them."""
