"""A durable task and workflow engine that needs nothing but Kafka.

The rules live in `decider/` and are pure; everything that touches a clock, a socket or a broker is
a thin shell around them. This file only names the version: importing the package starts nothing.
"""

__version__ = "0.1.0"
