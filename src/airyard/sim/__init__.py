"""The deterministic simulator: production loop, planner and runner machine under virtual time."""
