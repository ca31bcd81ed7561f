"""Health of machines, nodes and devices: what was seen, what it means, and what becomes of the node. Pure."""
