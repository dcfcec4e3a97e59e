"""Models in a browser: modules of JavaScript that read a recorded program and its weights from a safetensors file, run it and
write. They have no dependencies and no build step. The explorer serves them beside its page, and a page of one's own may hold
them."""
