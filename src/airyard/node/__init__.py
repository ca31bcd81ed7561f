"""The node side: agent, zygote and runner."""
