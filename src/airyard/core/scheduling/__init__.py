"""The planner: a pure function from a snapshot of the yard to placements, evictions and reasons."""
