"""The command line: one file per noun or role, put together in `main`."""
