"""The built-in workers of domain ``system``: what workflows ask of the engine that a decision must not do itself.

A script may loop for ever, a transformation may eat the memory, a server may not answer: none of that belongs into the
process that decides. So these operators are tasks like any other, handed out to a domain of their own and served by
``broker-engine system``. Adding one is a function and one row in ``SYSTEM_TASKS``.
"""

from broker_engine.worker.system.tasks import SYSTEM_TASKS, Resources, system_tasks

__all__ = ["SYSTEM_TASKS", "Resources", "system_tasks"]
