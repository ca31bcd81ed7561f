"""How long runs last: learnt from those that have ended, asked about those that wait or run."""
