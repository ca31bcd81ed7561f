"""Airyard: an open AI Runtime that runs in your own yard."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Return ``step``, ``compute`` or ``section`` of ``airyard.steps``, which is imported when it is asked for."""
    if name in ("step", "compute", "section"):
        from airyard import steps

        return getattr(steps, name)
    raise AttributeError(f"module 'airyard' has no attribute {name!r}")
