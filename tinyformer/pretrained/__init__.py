"""Pretrained models in Hugging Face's layout: a folder with config.json, weights (safetensors) and a tokenizer.

``from_pretrained`` reads GPT-2, Llama (SmolLM2, too), Qwen2, Qwen3, Gemma, BERT and Marian; ``save_pretrained`` writes folders
that Hugging Face's classes read. What differs between the architectures stands in one file each: gpt2.py, llama.py, bert.py,
marian.py. Nothing else in the project knows their names.

Read ``loading`` first. ``folders`` opens the settings and the tensors of a folder, and ``gguf`` those of a file of llama.cpp.
``choosing`` finds the family, whose tables make the model, and ``weights`` puts the tensors into it.
"""
