"""The engine in memory, one step at a time: to test workflows without Kafka, and to break the engine on purpose.

The same processor, delay tiers, codecs and topics as in production; only the cluster (``log.memory``), the clocks and
the threads are replaced. Nothing happens unless ``Engine.run`` or a ``step`` is called, and the same calls give the
same records::

    with Engine() as engine:
        engine.register_task({"name": "greet"})
        engine.serve("greet", lambda data, _work: {"hello": data["name"]})
        workflow_id = engine.start_task("greet", {"name": "Ada"})
        engine.run()
        assert engine.workflow(workflow_id).status == "COMPLETED"
"""

from broker_engine.testing.clock import FakeClock
from broker_engine.testing.engine import Engine
from broker_engine.testing.node import Node
from broker_engine.testing.worker import Behaviour, Handler, SteppedWorker

__all__ = ["Behaviour", "Engine", "FakeClock", "Handler", "Node", "SteppedWorker"]
