"""The clauses of the contract, as a failure names them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NoReturn

from pagedkv_protocols.errors import PagedKVError


class Clause(enum.Enum):
    """One sentence of the contract; a failure of the kit begins with the one that broke."""

    DECODE = "append_decode: the query sees every stored position up to its own, in the window"
    WINDOW = (
        "append_window: L positions, causal among themselves and aligned bottom-right: "
        "the last query at the last position, each within the window"
    )
    COMMITTED = "append_committed: the read is the window read over the same positions"
    BIDIRECTIONAL = (
        "append_bidirectional: causal in the window, or else both flagged, or of one span"
    )
    ENCODER = "append_encoder: the encoder's own mask over the first window, or all-to-all"
    BLOCK_READ = "read_block: each query sees all stored positions, then all of the block"
    NOT_STORED = "read_block: nothing is appended and the offset stays"
    FIRST_ONLY = "append_bidirectional, append_encoder: the first window only, else Unsupported"
    DONOR = "capture_donor_rows: the stored positions in order, with offset, start and end"
    FORK = "fork: the same positions, and neither sees what the other does later"
    MASK = "Read.attend: a mask, or None for every position, takes the place of the read's rule"
    MASK_HEAD = "Read.attend: a mask with a plane for each query head masks each by its own"
    MASK_ROW = (
        "Read.attend: a row with nothing left is finite under a bool mask and NaN under an "
        "additive one of -inf, and no other row feels it"
    )
    SINKS = "Read.attend: each head's sink joins its softmax as one more score with no value"
    SOFTCAP = "Read.attend: softcap * tanh(score / softcap) before the mask, or Unsupported"
    RESULT = "Read.attend: the result is [B, Hq, L, Dv] in the dtype of the queries"
    EXACT = "reference_cache: the same rows under the same calls give the same bits"
    AS_OF_APPEND = (
        "Read: later appends, trims, forks, growth and the end of the cache change no answer"
    )
    AGAIN = "Read: attended again, it gives the same answer"
    DISPOSED = "dispose: whatever is asked afterwards raises Disposed; twice is once"
    OFFSET = "Cache.offset: the number of positions appended and not trimmed"
    TRIM = "Cache.trim: the last n positions are gone, all of them if fewer, and it says how many"
    TRIMMABLE = "Cache.is_trimmable: whether trim of as many would be carried out"
    TRIM_ARGUMENT = (
        "Cache.trim: InvalidArgument below 0, InvalidType for a bool or what is no integer"
    )
    EXPORT = "Cache.export: the live rows in order, never a trimmed one, in the stored dtype"
    EMPTY = "Cache: with nothing stored, every call answers or refuses by a typed error"
    OWNED = "export, capture_donor_rows: the arrays are the caller's own"
    HANDED_OUT = "Cache: what it handed out never changes under whoever holds it"
    SIGNATURE = "Cache.signature: equal where rows are stored alike, whatever the rows"
    DTYPE = "Cache: the first keys fix the dtype; later rows are rounded to it, to nearest"
    REFUSAL = "what does not fit is refused by the error the protocol names, with a message"
    UNCHANGED = "a call that raises a PagedKVError changed nothing"
    CAPABILITY = "supports: what a backend claims, it has"
    ADAPTER = "ArrayAdapter: an array is the numbers it was made from, rounded to nearest"
    PLANES = "PageCodec.planes: encode gives one [1, Hkv, L, width] of the stated dtype a plane"
    ROW_ALONE = "PageCodec.encode: a row's codes depend on that row alone"
    DECODED = "PageCodec.decode: keys [..., Dk] and values [..., Dv], each row from its own codes"
    DESCRIBED = "PageCodec: from_dict(to_dict()) is equal, and plain data"
    NOT_DESCRIBED = "PageCodec.from_dict: IllegalFormat if anything is missing, unknown or other"
    ILLEGAL = "PageCodec.planes: IllegalFormat for dims it cannot hold, naming the dim"
    POOL_COUNT = "pool: num_free is the number of blocks that nobody holds"
    POOL_TAKE = "pool: a block is handed out only while nobody holds it, and only once"
    POOL_HOLDERS = "pool: a block is free when its last holder lets go, and not before"
    LAUNCH = "KernelBackend: a launch computes what its source says, in fresh outputs"
    LAUNCH_INPUTS = "KernelBackend: a source or a call with inputs not stated is refused"


def broken(clause: Clause, case: str, found: str) -> NoReturn:
    """Fail, naming the clause, what was done, and what came of it."""
    __tracebackhide__ = True
    raise AssertionError(f"broken: {clause.value}\n  case: {case}\n  found: {found}")


def check(holds: bool, clause: Clause, case: str, found: str) -> None:
    """Fail as ``broken`` does unless ``holds``.

    >>> check(1 + 1 == 3, Clause.OFFSET, "two appended", "3")
    Traceback (most recent call last):
    AssertionError: broken: Cache.offset: the number of positions appended and not trimmed
      case: two appended
      found: 3
    """
    __tracebackhide__ = True
    if not holds:
        broken(clause, case, found)


def refused(
    error: type[PagedKVError],
    call: Callable[[], object],
    case: str,
    clause: Clause = Clause.REFUSAL,
) -> str:
    """Fail unless ``call`` raises ``error`` with a message, and give the message."""
    __tracebackhide__ = True
    raised: Exception | None = None
    try:
        call()
    except Exception as it:  # noqa: BLE001 - whatever it is, it may not be the error named
        raised = it
    found = f"{raised!r}, not {error.__name__}" if raised else f"taken, not {error.__name__}"
    check(isinstance(raised, error), clause, case, found)
    check(bool(str(raised)), clause, case, f"{error.__name__} with no message")
    return str(raised)
