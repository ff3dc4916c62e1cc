"""Side by side: centers trained at once, each step a replay of a captured CUDA graph."""
