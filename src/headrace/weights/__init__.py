"""Model files in: GGUF and safetensors readers, names, where models come from."""
