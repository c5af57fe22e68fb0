"""The gateway: Conductor's REST API over the engine. It holds no truth: what it keeps is read from the topics again."""
