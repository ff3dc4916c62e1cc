"""The fast engine: centers train side by side, and each step replays a captured CUDA graph."""
