"""The commands, grouped by when they are used; `cli.py` puts them together.

Each command imports what it needs only when it runs, so `--help` does not wait for torch.
"""
