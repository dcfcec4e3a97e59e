"""Pretrained models in Hugging Face format: a folder with config.json, weights (safetensors) and a tokenizer.

``from_pretrained`` loads GPT-2, Llama (and SmolLM2), Mistral, Qwen2, Qwen3, Gemma, BERT and related encoders, and Marian.
``save_pretrained`` writes folders for Hugging Face classes. Architectures differ only in the tables of decoders.py and
encoders.py. No other module names them.

Start with ``loading``. ``folders`` reads a folder's settings and tensors, and ``gguf`` those of a llama.cpp file. ``choosing``
selects the family, whose tables build the model. ``weights`` loads the tensors.
"""
