"""`broker-engine demo`: a real CSV file imported by some hundred workflows, while processes are killed.

Follow one chunk of the file: ``rows.py`` writes it (and breaks a few rows on purpose), ``run.py`` starts its workflow,
``tasks.py`` has the task that workers run, in four steps (VALIDATE, PARSE, UPSERT, REPORT), ``notifier.py`` is the
service that is told about it and answers 503 at first, ``progress.py`` reads what the engine writes, ``verdict.py``
checks the sum.
"""
