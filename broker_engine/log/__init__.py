"""The log: what the engine needs of Kafka (ports.py), the real one (confluent.py), one in memory (memory.py)."""
