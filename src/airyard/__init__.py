"""Airyard: an open AI Runtime that runs in your own yard."""

__version__ = "0.1.0"
