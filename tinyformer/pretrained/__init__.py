"""Pretrained models in Hugging Face's layout: a folder with config.json, weights (safetensors) and a tokenizer.

``from_pretrained`` reads GPT-2, Llama (and SmolLM2), Mistral, Qwen2, Qwen3, Gemma, BERT and its relatives, and Marian.
``save_pretrained`` writes folders that Hugging Face's classes read. The architectures differ only in the tables of decoders.py
and encoders.py; no other module names them.

Start with ``loading``. ``folders`` opens the settings and the tensors of a folder, and ``gguf`` those of a llama.cpp file.
``choosing`` finds the family, whose tables make the model, and ``weights`` loads the tensors into it.
"""
