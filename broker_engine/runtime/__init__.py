"""The shells that run things: loops around the pure core, and a local broker for development."""
