"""Checks before work starts: the catalogue of section by section, how it is run, and what a pass is remembered as."""
