"""A pool and its tables beside a model, in any order of calls."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedkv_pool import BlockPool, BlockTable
from pagedkv_protocols import BlockNotHeld, PoolExhausted
from tests.pool.model import Model, Sequence, state_of

MOST_BLOCKS = 16


class PoolMachine(RuleBasedStateMachine):
    """Blocks are memory: a sequence reads back its tokens, a read what it saw, whatever is done."""

    pool: BlockPool
    model: Model

    @initialize(num_blocks=st.integers(4, 10), block_size=st.integers(1, 4), data=st.data())
    def begin(self, num_blocks, block_size, data):
        self.pool = BlockPool(num_blocks)
        self.model = Model(num_blocks, block_size)
        self.num_tokens = 0
        for _ in range(2):
            self.open()
            self.append(data, 3)

    # The drawing of arguments.

    def open_sequences(self):
        return [s for s in self.model.sequences if s.real is not None]

    def draw_sequence(self, data):
        return data.draw(st.sampled_from(self.open_sequences()), label="sequence")

    def draw_position(self, data, sequence, label):
        """A position that is held, or the one behind the last."""
        start = self.model.start(sequence)
        return data.draw(st.integers(start, max(start, len(sequence.tokens))), label=label)

    def refused(self, error, call):
        """``call`` raises ``error`` and changes nothing."""
        tables = [s.real for s in self.open_sequences()]
        before = state_of(self.pool, *tables)
        with pytest.raises(error):  # kept under no name: its traceback would hold the tables
            call()
        assert state_of(self.pool, *tables) == before

    # The verbs of a table.

    @precondition(lambda self: len(self.model.sequences) < 5)
    @rule()
    def open(self):
        table = BlockTable(self.pool, self.model.block_size)
        self.model.sequences.append(Sequence(table))

    @precondition(open_sequences)
    @rule(data=st.data(), more=st.integers(0, 12))
    def reserve(self, data, more):
        sequence = self.draw_sequence(data)
        self.make_room(sequence, len(sequence.tokens) + more)

    def make_room(self, sequence, length):
        """Whether there is room now: it is made by the rule, or refused."""
        missing = self.model.missing(sequence, length)
        assert sequence.real.missing(length) == missing
        if missing > len(self.model.free()):
            self.refused(PoolExhausted, lambda: sequence.real.reserve(length))
            return False
        sequence.real.reserve(length)
        self.model.reserve(sequence, length)
        return True

    @precondition(open_sequences)
    @rule(data=st.data(), count=st.integers(1, 6))
    def append(self, data, count):
        sequence = self.draw_sequence(data)
        for position in range(len(sequence.tokens), len(sequence.tokens) + count):
            if not self.make_room(sequence, position + 1) or not self.own(sequence, position):
                return
            self.num_tokens += 1
            self.model.write(sequence, self.num_tokens)

    def own(self, sequence, position):
        """Whether the position may be written now: in place, or because its block was copied."""
        return sequence.real.is_writable(position) or self.copy(sequence, position)

    def copy(self, sequence, position):
        index = position // self.model.block_size
        if not self.model.free():
            self.refused(PoolExhausted, lambda: sequence.real.replace(index))
            return False
        assert sequence.real.replace(index) == self.model.replace(sequence, index)
        assert sequence.real.is_writable(position)
        return True

    @precondition(open_sequences)
    @rule(data=st.data())
    def replace(self, data):
        sequence = self.draw_sequence(data)
        if sequence.slots:
            last = self.model.capacity(sequence) - 1
            self.copy(sequence, data.draw(st.integers(self.model.start(sequence), last)))

    @precondition(open_sequences)
    @rule(data=st.data())
    def trim(self, data):
        sequence = self.draw_sequence(data)
        length = self.draw_position(data, sequence, "length")
        sequence.real.trim(length)
        self.model.trim(sequence, length)

    @precondition(open_sequences)
    @rule(data=st.data())
    def release_before(self, data):
        sequence = self.draw_sequence(data)
        position = self.draw_position(data, sequence, "position")
        free, first = self.pool.num_free, sequence.first
        promised = sequence.real.freed_before(position)
        count = sequence.real.release_before(position)
        self.model.release_before(sequence, position)
        assert count == sequence.first - first
        assert promised == self.pool.num_free - free

    @precondition(lambda self: self.open_sequences() and len(self.model.sequences) < 5)
    @rule(data=st.data())
    def fork(self, data):
        sequence = self.draw_sequence(data)
        length = self.draw_position(data, sequence, "length")
        real = sequence.real.fork(length)
        self.model.sequences.append(self.model.fork(sequence, length, real))

    @precondition(open_sequences)
    @rule(data=st.data())
    def close(self, data):
        sequence = self.draw_sequence(data)
        sequence.real.close()
        self.model.trim(sequence, 0)
        sequence.first = 0

    @precondition(open_sequences)
    @rule(data=st.data())
    def drop(self, data):
        self.model.drop(self.draw_sequence(data))

    # Reads.

    @precondition(lambda self: self.open_sequences() and len(self.model.reads) < 6)
    @rule(data=st.data())
    def read(self, data):
        sequence = self.draw_sequence(data)
        end = self.draw_position(data, sequence, "end")
        self.model.read(sequence, end, sequence.real.pin(end))

    @precondition(lambda self: self.model.reads)
    @rule(data=st.data())
    def dispose(self, data):
        self.model.dispose(data.draw(st.sampled_from(self.model.reads), label="read"))

    # The verbs of a pool.

    @precondition(lambda self: self.pool.num_blocks < MOST_BLOCKS)
    @rule(count=st.integers(1, 3))
    def grow(self, count):
        self.pool.grow(count)
        self.model.num_blocks += count

    @rule(count=st.integers(0, 4), after=st.none() | st.integers(0, MOST_BLOCKS))
    def take(self, count, after):
        if after in self.model.free():
            return  # nobody grows behind a block that nobody holds
        if count > len(self.model.free()):
            self.refused(PoolExhausted, lambda: self.pool.take(count, after))
            return
        taken = self.pool.take(count, after)
        assert taken == self.model.take(count, after)
        self.model.hands.append(taken)

    @precondition(open_sequences)
    @rule(data=st.data())
    def share(self, data):
        slots = list(self.draw_sequence(data).slots)
        self.pool.share(slots)
        self.model.hands.append(slots)

    @precondition(lambda self: self.model.hands)
    @rule(data=st.data())
    def release(self, data):
        slots = data.draw(st.sampled_from(self.model.hands), label="blocks")
        self.pool.release(slots)
        self.model.hands = [other for other in self.model.hands if other is not slots]

    @precondition(open_sequences)
    @rule(data=st.data())
    def pin(self, data):
        slots = self.draw_sequence(data).slots
        rows = {slot: data.draw(st.integers(0, self.model.block_size)) for slot in slots}
        self.pool.pin(slots, [rows[slot] for slot in slots])
        self.model.hand_pins.append(rows)
        self.model.pin(rows)

    @precondition(lambda self: self.model.hand_pins)
    @rule(data=st.data())
    def unpin(self, data):
        rows = data.draw(st.sampled_from(self.model.hand_pins), label="pin")
        self.pool.unpin(list(rows))
        self.model.hand_pins = [other for other in self.model.hand_pins if other is not rows]
        self.model.unpin()

    # What is refused.

    @rule(data=st.data())
    def give_back_what_is_not_held(self, data):
        block = data.draw(st.integers(-2, self.pool.num_blocks + 1), label="block")
        holders, pins = self.model.holders(block), self.model.pins(block)
        held = [slot for slot in range(self.pool.num_blocks) if self.model.holders(slot)]
        self.refused(BlockNotHeld, lambda: self.pool.release([*held, *[block] * (holders + 1)]))
        self.refused(BlockNotHeld, lambda: self.pool.unpin([block] * (pins + 1)))
        if not holders:
            self.refused(BlockNotHeld, lambda: self.pool.share([*held, block]))
        if not holders and not pins:
            self.refused(BlockNotHeld, lambda: self.pool.pin([*held, block], [1] * (len(held) + 1)))

    # The docstrings' sentences.

    @invariant()
    def every_block_is_free_or_used(self):
        stats = self.pool.stats()
        assert stats.num_free + stats.num_used == stats.num_blocks == self.model.num_blocks
        assert stats.num_free == self.pool.num_free == len(self.model.free())
        assert stats.peak_used == self.model.peak_used

    @invariant()
    def a_free_block_has_no_holders_and_no_pins_and_others_have_those_of_the_model(self):
        blocks = range(self.model.num_blocks)
        assert [self.pool.ref_cnt(b) for b in blocks] == [self.model.holders(b) for b in blocks]
        rows = [self.model.pinned_rows.get(b, 0) for b in blocks]
        assert [self.pool.pinned_rows(b) for b in blocks] == rows
        stats = self.pool.stats()
        assert stats.num_shared == sum(self.model.holders(b) > 1 for b in blocks)
        assert stats.num_pinned == sum(self.model.pins(b) > 0 for b in blocks)

    @invariant()
    def a_table_lists_its_slots_in_order(self):
        for sequence in self.open_sequences():
            table = sequence.real
            assert list(table.blocks) == sequence.slots
            assert table.num_blocks == len(sequence.slots)
            assert (table.start, table.capacity) == (
                self.model.start(sequence),
                self.model.capacity(sequence),
            )
            indices = range(sequence.first, sequence.first + len(sequence.slots))
            assert [table.slot(index) for index in indices] == sequence.slots

    @invariant()
    def a_span_is_one_run_if_its_rows_follow_each_other(self):
        size = self.model.block_size
        for sequence in self.open_sequences():
            table, start, end = (
                sequence.real,
                self.model.start(sequence),
                self.model.capacity(sequence),
            )
            flat = [slot * size + row for slot in sequence.slots for row in range(size)]
            assert table.rows(start, end) == flat
            for begin in range(start, end, max(1, size - 1)):
                for stop in range(begin + 1, end + 1, size):
                    rows = flat[begin - start : stop - start]
                    is_run = rows == list(range(rows[0], rows[0] + len(rows)))
                    assert table.run(begin, stop) == (rows[0] if is_run else None)
            assert table.is_run == (flat == list(range(flat[0], flat[-1] + 1)) if flat else True)

    @invariant()
    def a_sequence_reads_back_what_was_appended_to_it(self):
        for sequence in self.model.sequences:
            for position in range(self.model.start(sequence), len(sequence.tokens)):
                place = self.model.place(sequence, position)
                assert self.model.memory[place] == sequence.tokens[position]

    @invariant()
    def a_live_read_sees_what_it_saw(self):
        for read in self.model.reads:
            assert {place: self.model.memory[place] for place in read.saw} == read.saw

    @invariant()
    def a_row_is_writable_if_one_table_holds_it_and_no_live_read_saw_it_or_a_later_one(self):
        for sequence in self.open_sequences():
            for position in range(self.model.start(sequence), self.model.capacity(sequence)):
                writable = sequence.real.is_writable(position)
                assert writable == self.model.is_writable(sequence, position)
                slot, row = self.model.place(sequence, position)
                seen = {r for read in self.model.reads for s, r in read.saw if s == slot}
                assert not (writable and seen and max(seen) >= row)

    def teardown(self):
        """At the end every block is free."""
        for slots in self.model.hands:
            self.pool.release(slots)
        for rows in self.model.hand_pins:
            self.pool.unpin(list(rows))
        for sequence in self.open_sequences():
            sequence.real.close()
        for read in self.model.reads:
            read.pin = None
        assert self.pool.num_free == self.pool.num_blocks
        assert self.pool.take(self.pool.num_blocks) == list(range(self.pool.num_blocks))


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=3 * settings().max_examples, stateful_step_count=50
)
