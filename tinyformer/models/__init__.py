"""The networks: attention, blocks and positions, the Transformer, GPT and BERT that are built from them, and recurrent ones."""
