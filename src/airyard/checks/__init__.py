"""Health probes: one module a signal."""
