"""Step by step: one model on one device, the reference for every faster engine."""
