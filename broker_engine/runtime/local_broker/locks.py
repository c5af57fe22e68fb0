"""Advisory locks that live exactly as long as the processes holding them.

A lock is `flock` on a file, and its file descriptor is handed down to the broker: the lock ends
when the broker does, however it ends. So there are no stale locks to clean up, and "is it still
running?" does not depend on process ids, which the system uses again.
"""

import fcntl
import os
from pathlib import Path


class Held(Exception):
    """Somebody else holds this lock."""


class FileLock:
    """A held lock. `fd` may be inherited by a child, which then holds it too."""

    def __init__(self, path: Path) -> None:
        """Take the lock at once or raise `Held`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self.fd)
            raise Held(str(path)) from error

    def close(self) -> None:
        """Drop this process's hold; a child that inherited the descriptor keeps its own."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def is_held(path: Path) -> bool:
    """Whether some process holds the lock now."""
    if not path.exists():
        return False
    try:
        FileLock(path).close()
    except Held:
        return True
    return False
