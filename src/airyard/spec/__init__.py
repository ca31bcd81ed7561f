"""The workload file: models, positions, overrides, bases, field help, JSON Schema, code snapshots."""
