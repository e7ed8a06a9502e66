"""Typed, bounded access to an architecture's own metadata keys; a number out of bounds is an error, never clipped."""

from hypnos_engine.domain.errors import LoadFailed
from hypnos_engine.gguf.header import Array, Header, LongText, Value

LARGEST_U32 = 2**32 - 1


class ArchitectureKeys:
    """The keys `<architecture>.<name>` of one header. Every method raises LoadFailed, naming file and key."""

    def __init__(self, header: Header, architecture: str) -> None:
        self.architecture = architecture
        self._header = header

    def refuse(
        self, problem: str, remedy: str = "Download it again, or another conversion of the model."
    ) -> LoadFailed:
        """Return the error for a header that can be read but cannot be right."""
        return LoadFailed(f"{self._header.name}: {problem} {remedy}")

    def has(self, name: str) -> bool:
        return self._full(name) in self._header.metadata

    def integer(self, name: str, default: int | None = None, *, low: int = 0, high: int = LARGEST_U32) -> int:
        """Return one integer between `low` and `high`; without a `default` the key has to be there."""
        value = self._header.metadata.get(self._full(name), default)
        if value is None:
            raise self.refuse(f"the metadata key {self._full(name)!r} is missing.")
        return self._checked(name, value, low, high)

    def text(self, name: str, default: str) -> str:
        value = self._header.metadata.get(self._full(name), default)
        return value if isinstance(value, str) else ""

    def per_layer(self, name: str, default: int, layers: int, *, high: int = LARGEST_U32) -> tuple[int, ...]:
        """Return one integer per layer: the key holds an array of exactly that length, or one number for all."""
        value = self._header.metadata.get(self._full(name), default)
        if not isinstance(value, Array):
            return (self._checked(name, value, 0, high),) * layers
        if value.length != layers:
            raise self.refuse(f"{self._full(name)!r} has {value.length} entries for {layers} layers.")
        return tuple(self._checked(name, entry, 0, high) for entry in self._entries(name, value))

    def flags(self, name: str, layers: int) -> tuple[bool, ...] | None:
        """Return an array of yes and no, one per layer and padded with no; None when the key holds no array."""
        value = self._header.metadata.get(self._full(name))
        if not isinstance(value, Array):
            return None
        entries = [entry != 0 for entry in self._entries(name, value)]
        return tuple((entries + [False] * layers)[:layers])

    def _entries(self, name: str, value: Array) -> tuple[int | bool, ...]:
        """Return the array's integers. One that was too long to keep cannot be one per layer."""
        if value.values is None or any(isinstance(entry, float) for entry in value.values):
            raise self.refuse(f"{self._full(name)!r} has {value.length} entries of type {value.element}.")
        return tuple(entry for entry in value.values if not isinstance(entry, float))

    def _full(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def _checked(self, name: str, value: Value, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            kind = "text" if isinstance(value, str | LongText) else type(value).__name__.lower()
            raise self.refuse(f"{self._full(name)!r} should be an integer, but is a {kind}.")
        if not low <= value <= high:
            raise self.refuse(f"{self._full(name)!r} is {value}, but has to lie between {low} and {high}.")
        return value
