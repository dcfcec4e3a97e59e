"""GPTs in a browser: modules of JavaScript that read weights from a safetensors file, compute logits and write. They have no
dependencies and no build step. The explorer serves them beside its page, and a page of one's own may hold them."""
