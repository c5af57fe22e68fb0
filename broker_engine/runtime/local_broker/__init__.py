"""A real Kafka broker on this machine, with nothing to install but this package.

Follow a start in `broker.py`: jars (pinned, fetched once), Java (a wheel), ports, configuration,
process, readiness. `find.py` chooses between a broker that is given, one from the jars and one in
Docker; `detached.py` is for brokers that outlive the command which started them.
"""

from broker_engine.runtime.local_broker.broker import LocalBroker
from broker_engine.runtime.local_broker.find import FoundBroker, find_or_start

__all__ = ["FoundBroker", "LocalBroker", "find_or_start"]
