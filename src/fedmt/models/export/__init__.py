"""A trained model as a file for others: ONNX for runtimes, safetensors with a model card for people."""
