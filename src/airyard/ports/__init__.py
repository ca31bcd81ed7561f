"""Protocols of what the application needs from the outside world."""
