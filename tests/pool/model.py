"""What a pool and its tables must do, in lists and dicts, everything counted anew each time."""

from __future__ import annotations

import attrs

from pagedkv_pool import BlockPool, BlockTable, Pin


def longest_run(free: set[int]) -> int:
    """Where the longest run of free slots starts, the lowest on ties."""

    def length(start: int) -> int:
        return 1 + length(start + 1) if start in free else 0

    return max(sorted(free), key=length)


def slots_to_take(free: set[int], count: int, after: int | None) -> list[int]:
    """The allocation rule, one block at a time: the slot after the last, else the longest run."""
    free, taken = set(free), []
    for _ in range(count):
        after = after + 1 if after is not None and after + 1 in free else longest_run(free)
        free.remove(after)
        taken.append(after)
    return taken


def state_of(pool: BlockPool, *tables: BlockTable) -> object:
    """Everything that can be seen of a pool and of tables, to be compared before and after."""
    blocks = range(pool.num_blocks)
    counts = [(pool.ref_cnt(b), pool.pinned_rows(b), pool.is_writable(b, 0)) for b in blocks]
    return pool.stats(), counts, [(t.blocks, t.start, t.capacity, t.is_run) for t in tables]


@attrs.define(eq=False)
class Reading:
    """What the live reads of one table share until it settles."""

    end: int = 0
    num_reads: int = 0
    rows: dict[int, int] = attrs.field(factory=dict)  # slot -> rows seen, once settled


@attrs.define(eq=False)
class Sequence:
    """One table: its slots, and the token that each position must read back."""

    real: BlockTable | None
    slots: list[int] = attrs.field(factory=list)
    first: int = 0
    tokens: list[int] = attrs.field(factory=list)  # of all positions, given back or not
    reading: Reading | None = None


@attrs.define(eq=False)
class Read:
    """One live read: its pin, and the token that it must find in each row that it saw."""

    pin: Pin | None
    reading: Reading
    saw: dict[tuple[int, int], int | None]


@attrs.define(eq=False)
class Model:
    """The blocks as memory, (slot, row) -> token, and all who hold or saw them."""

    num_blocks: int
    block_size: int
    sequences: list[Sequence] = attrs.field(factory=list)
    reads: list[Read] = attrs.field(factory=list)
    hands: list[list[int]] = attrs.field(factory=list)  # holds of no table, such as an index has
    hand_pins: list[dict[int, int]] = attrs.field(factory=list)  # slot -> rows
    pinned_rows: dict[int, int] = attrs.field(factory=dict)  # of pinned slots
    memory: dict[tuple[int, int], int | None] = attrs.field(factory=dict)
    peak_used: int = 0

    # Who has what.

    def holders(self, slot: int) -> int:
        lists = [*(sequence.slots for sequence in self.sequences), *self.hands]
        return sum(slots.count(slot) for slots in lists)

    def pins(self, slot: int) -> int:
        readings = {id(read.reading): read.reading.rows for read in self.reads}
        return sum(slot in rows for rows in [*readings.values(), *self.hand_pins])

    def free(self) -> set[int]:
        return {b for b in range(self.num_blocks) if not (self.holders(b) or self.pins(b))}

    def start(self, sequence: Sequence) -> int:
        return sequence.first * self.block_size

    def capacity(self, sequence: Sequence) -> int:
        return (sequence.first + len(sequence.slots)) * self.block_size

    def missing(self, sequence: Sequence, length: int) -> int:
        return len(range(self.capacity(sequence), length, self.block_size))

    def place(self, sequence: Sequence, position: int) -> tuple[int, int]:
        """The slot and the row of a position."""
        at = position // self.block_size - sequence.first
        return sequence.slots[at], position % self.block_size

    def is_writable(self, sequence: Sequence, position: int) -> bool:
        slot, row = self.place(sequence, position)
        seen = sequence.reading is not None and sequence.reading.end > position
        return self.holders(slot) == 1 and self.pinned_rows.get(slot, 0) <= row and not seen

    # What happens.

    def take(self, count: int, after: int | None) -> list[int]:
        """Slots by the rule; what was in their memory is lost."""
        taken = slots_to_take(self.free(), count, after)
        self.memory |= {(slot, row): None for slot in taken for row in range(self.block_size)}
        self.peak_used = max(self.peak_used, self.num_blocks - len(self.free()) + count)
        return taken

    def reserve(self, sequence: Sequence, length: int) -> None:
        last = sequence.slots[-1] if sequence.slots else None
        sequence.slots += self.take(self.missing(sequence, length), last)

    def write(self, sequence: Sequence, token: int) -> None:
        self.memory[self.place(sequence, len(sequence.tokens))] = token
        sequence.tokens.append(token)

    def replace(self, sequence: Sequence, index: int) -> tuple[int, int]:
        """Another slot in place of the one at ``index``, with what is in its memory."""
        at = index - sequence.first
        old = sequence.slots[at]
        [new] = self.take(1, sequence.slots[at - 1] if at else None)
        self.settle(sequence, beyond=0)
        sequence.slots[at] = new
        for row in range(self.block_size):
            self.memory[new, row] = self.memory[old, row]
        return old, new

    def trim(self, sequence: Sequence, length: int) -> None:
        self.settle(sequence, beyond=length)
        del sequence.tokens[length:]
        while sequence.slots and self.capacity(sequence) - self.block_size >= length:
            sequence.slots.pop()

    def release_before(self, sequence: Sequence, position: int) -> None:
        count = position // self.block_size - sequence.first
        if count > 0:
            self.settle(sequence, beyond=0)
            del sequence.slots[:count]
            sequence.first += count

    def fork(self, sequence: Sequence, length: int, real: BlockTable) -> Sequence:
        count = self.missing(Sequence(None), length) - sequence.first
        tokens = sequence.tokens[:length]
        return Sequence(real, sequence.slots[: max(0, count)], sequence.first, tokens)

    def drop(self, sequence: Sequence) -> None:
        """The caller lets go of a table; reads that are not settled keep it."""
        sequence.real = None
        if sequence.reading is None:
            self.sequences.remove(sequence)

    # What reads saw.

    def read(self, sequence: Sequence, end: int, pin: Pin) -> None:
        reading = sequence.reading = sequence.reading or Reading()
        reading.end = max(reading.end, end)
        reading.num_reads += 1
        places = [self.place(sequence, p) for p in range(self.start(sequence), end)]
        self.reads.append(Read(pin, reading, {place: self.memory[place] for place in places}))

    def settle(self, sequence: Sequence, beyond: int) -> None:
        """What live reads saw is pinned by slot, if they saw a position from ``beyond`` on."""
        reading = sequence.reading
        if reading is None or reading.end <= beyond:
            return
        for position in range(self.start(sequence), reading.end):
            slot, row = self.place(sequence, position)
            reading.rows[slot] = row + 1
        self.pin(reading.rows)
        sequence.reading = None

    def pin(self, rows: dict[int, int]) -> None:
        for slot, count in rows.items():
            self.pinned_rows[slot] = max(self.pinned_rows.get(slot, 0), count)

    def unpin(self) -> None:
        """Forget the rows of slots that nothing pins any more."""
        self.pinned_rows = {b: rows for b, rows in self.pinned_rows.items() if self.pins(b)}

    def dispose(self, read: Read) -> None:
        read.pin = None
        self.reads.remove(read)
        read.reading.num_reads -= 1
        if not read.reading.num_reads:
            for sequence in [s for s in self.sequences if s.reading is read.reading]:
                sequence.reading = None
                if sequence.real is None:
                    self.sequences.remove(sequence)
        self.unpin()
