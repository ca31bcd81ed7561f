"""The domain: frozen facts, transition tables and pure decisions. No I/O, clock, randomness or threads."""
