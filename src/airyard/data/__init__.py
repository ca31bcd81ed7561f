"""Training-side helpers; they live in user processes."""
