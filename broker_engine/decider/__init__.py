"""The rules: pure functions from (state, command, context) to a decision.

No clock, no randomness, no Kafka, no logging.
"""
