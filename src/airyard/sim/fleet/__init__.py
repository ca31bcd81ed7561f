"""A thousand simulated machines that speak the real protocols to a real server: ``airyard dev fleet``."""

FOLDER = "dev-fleet"
"""In the data folder: what the simulated machines keep there, and the mark of a yard that has no others."""
