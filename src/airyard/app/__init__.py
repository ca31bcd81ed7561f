"""The control loop and the read-side queries. Synchronous; knows no socket and no event loop."""
