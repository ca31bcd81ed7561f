"""The verbs of the command line, one module each; every module has a click command named ``command``."""
