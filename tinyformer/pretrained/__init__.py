"""Pretrained models in Hugging Face's layout: a folder with config.json, weights (safetensors) and a tokenizer.

``from_pretrained`` reads GPT-2, Llama (SmolLM2, too), Qwen2, Qwen3, Gemma, BERT and Marian; ``save_pretrained`` writes folders
that Hugging Face's classes read. ``from_pretrained`` also reads llama.cpp's GGUF files (gguf_file.py, gguf_models.py,
gguf_tokenizers.py), whose models are of the same families. What differs between the architectures stands in one file each:
gpt2.py, llama.py, bert.py, marian.py. Nothing else in the project knows their names.
"""
