"""Implementations of the ports: journal, engines, tracker, blob and log stores."""
