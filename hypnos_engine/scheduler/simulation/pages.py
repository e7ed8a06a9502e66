"""Which pages of weight files are in host memory: the system's page cache, the same for every policy; reads nothing."""

from collections import OrderedDict


class PageCache:
    """The least recently read files lose their pages first, a part of a file at a time; kept ones stay.

    A sequential reader of a file larger than the cache would find nothing of it again on a real machine; here it finds
    the part that fitted, to the advantage of whoever relies on the cache.
    """

    def __init__(self, room_bytes: int) -> None:
        self._room_bytes = room_bytes
        self._cached: OrderedDict[str, int] = OrderedDict()
        self._kept: dict[str, dict[str, int]] = {}
        self._total = 0
        self.touched: set[str] = set()
        """Files of which more or less is there than when somebody last emptied this."""

    @property
    def kept_bytes(self) -> int:
        """Pages that cannot be taken away: held ones, and those that workers compute from."""
        return sum(self.kept(files) for files in self._kept)

    def cached(self, files: str) -> int:
        """Bytes of a file that are in host memory."""
        return self._cached.get(files, 0)

    def kept(self, files: str) -> int:
        """Bytes of a file that stay: the most that one of its keepers asks for."""
        return max(self._kept.get(files, {}).values(), default=0)

    def read(self, files: str, size_bytes: int) -> int:
        """Read the first bytes of a file; return how many of them had to come from disk."""
        had = self._cached.get(files, 0)
        self._set(files, max(had, size_bytes))
        if files in self._cached:
            self._cached.move_to_end(files)
        self._shrink()
        return max(0, size_bytes - had)

    def keep(self, files: str, keeper: str, size_bytes: int) -> None:
        """Let a keeper hold so many bytes of a file from now on; 0 lets go of them."""
        keepers = self._kept.setdefault(files, {})
        if size_bytes:
            keepers[keeper] = size_bytes
        else:
            keepers.pop(keeper, None)
            if not keepers:
                del self._kept[files]
        self._shrink()

    def drop(self, files: str) -> None:
        """Forget a file's pages, but for those that somebody keeps."""
        self._set(files, min(self.cached(files), self.kept(files)))

    def resize(self, room_bytes: int) -> None:
        """Give the cache another size."""
        self._room_bytes = room_bytes
        self._shrink()

    def _shrink(self) -> None:
        over = self._total - max(self._room_bytes, 0)
        for files in tuple(self._cached) if over > 0 else ():
            lost = min(over, self._cached[files] - min(self.kept(files), self._cached[files]))
            self._set(files, self._cached[files] - lost)
            over -= lost
            if over <= 0:
                return

    def _set(self, files: str, size_bytes: int) -> None:
        had = self._cached.get(files, 0)
        if size_bytes == had:
            return
        self.touched.add(files)
        self._total += size_bytes - had
        if size_bytes:
            self._cached[files] = size_bytes
        else:
            self._cached.pop(files, None)
