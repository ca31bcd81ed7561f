"""The node side: agent, fork server and runner."""
