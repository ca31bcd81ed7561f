"""Recorded demand: what was asked of a cluster, when, and what became of it. Owns: nothing itself."""
