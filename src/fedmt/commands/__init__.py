"""The commands, grouped by when they are used; `cli.py` puts them together.

Each command imports what it needs when it runs. So `--help` does not wait for torch.
"""
