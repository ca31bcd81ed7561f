"""The Python client: building requests is pure, the transport is thin."""

from airyard.sdk.client import Client
from airyard.sdk.config import Target, resolve

__all__ = ["Client", "Target", "resolve"]
