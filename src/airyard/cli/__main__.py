"""``python -m airyard.cli``: the same as ``airyard``."""

from airyard.cli.main import main

main()
