"""`python -m fedmt`."""

from fedmt.cli import main

main()
