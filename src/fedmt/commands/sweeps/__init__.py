"""Many runs from one experiment file, and the table they make (docs/guides/sweeps.md)."""
