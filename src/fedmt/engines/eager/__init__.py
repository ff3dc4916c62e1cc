"""The step-by-step engine: one model on one device. It is the reference for every faster engine."""
