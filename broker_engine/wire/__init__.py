"""Bytes to model and back: Avro in Confluent framing, signatures and tokens. Knows no Kafka client."""
