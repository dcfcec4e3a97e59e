"""Models in a browser: JavaScript modules that load a recorded program and its weights from a safetensors file, run it and
generate text. They have no dependencies and no build step. The explorer serves them with its page, and your page may include
them."""
