"""The tokenizer in a GGUF file's metadata, as the files that transformers reads."""

import json

from attrs import frozen
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from pagedkv_mlx.gguf.header import Header
from pagedkv_protocols import UnsupportedModel

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

# `tokenizer.ggml.pre` names how a text is cut into words before merging.
DIGITS_ALONE = {"smollm", "starcoder", "refact", "command-r"}
GPT2 = {"gpt-2", "gpt2"}
LLAMA3 = {"llama-bpe", "llama3", "llama-v3"}
# The split pattern that Llama 3's tokenizer is published with, one alternative a line.
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@frozen
class Vocabulary:
    """Tokens by id, and the type of each."""

    tokens: list[str]
    types: list[int]

    def ids(self) -> dict[str, int]:
        """Each token's id."""
        return {token: index for index, token in enumerate(self.tokens)}


def tokenizer_files(header: Header) -> dict[str, str]:
    """The texts of ``tokenizer.json`` and ``tokenizer_config.json``, by file name.

    Known are byte-level BPE (``gpt2``, cut as SmolLM, GPT-2 or Llama 3 cut) and SentencePiece's
    BPE with bytes for what it lacks (``llama``). Anything else raises ``UnsupportedModel``.
    """
    vocabulary = _vocabulary(header)
    model = header.one("tokenizer.ggml.model", str)
    if model == "gpt2":
        tokenizer, begins = _byte_level(header, vocabulary)
    elif model == "llama":
        tokenizer, begins = _sentencepiece(header, vocabulary), True
    else:
        known = "'gpt2' (byte-level BPE) and 'llama' (SentencePiece)"
        raise UnsupportedModel(f"{header.name}: tokenizer model {model!r}, known are {known}")
    _add_tokens(tokenizer, vocabulary)
    _add_ends(tokenizer, header, vocabulary, begins=begins)
    config = json.dumps(_config(header, vocabulary), indent=2, ensure_ascii=False)
    return {"tokenizer.json": tokenizer.to_str(), "tokenizer_config.json": config}


def _vocabulary(header: Header) -> Vocabulary:
    tokens = header.many("tokenizer.ggml.tokens", str)
    types = header.many("tokenizer.ggml.token_type", int)
    if len(set(tokens)) == len(tokens) == len(types):
        return Vocabulary(tokens, types)
    counts = f"{len(tokens)} tokens, {len(set(tokens))} of them distinct, {len(types)} types"
    raise UnsupportedModel(f"{header.name}: {counts}; the three must be equal")


def _byte_level(header: Header, vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    """The tokenizer, and whether its texts begin with a token where the file does not say."""
    pre = header.one("tokenizer.ggml.pre", str)
    cuts = _cuts(header, pre)
    llama3 = pre in LLAMA3
    ids = vocabulary.ids()
    tokenizer = Tokenizer(models.BPE(ids, _merges(header, ids), ignore_merges=llama3))
    tokenizer.pre_tokenizer = cuts
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, llama3


def _merges(header: Header, ids: dict[str, int]) -> list[tuple[str, str]]:
    merges = []
    for line in header.many("tokenizer.ggml.merges", str):
        left, _, right = line.partition(" ")
        if not {left, right, left + right} <= ids.keys():
            raise UnsupportedModel(f"{header.name}: {line!r} is no merge of two tokens to a third")
        merges.append((left, right))
    return merges


def _cuts(header: Header, pre: str) -> pre_tokenizers.PreTokenizer:
    if pre in GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in DIGITS_ALONE:
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if pre in LLAMA3:
        symbols = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated"), symbols]
        )
    known = ", ".join(sorted(DIGITS_ALONE | GPT2 | LLAMA3))
    raise UnsupportedModel(f"{header.name}: tokenizer.ggml.pre {pre!r}, known are {known}")


def _sentencepiece(header: Header, vocabulary: Vocabulary) -> Tokenizer:
    """SentencePiece's BPE: spaces are written ``▁``, also one in front unless the file says no."""
    tokenizer = Tokenizer(_scored_model(header, vocabulary))
    space_first = header.maybe("tokenizer.ggml.add_space_prefix", bool) is not False
    prepend = [normalizers.Prepend("▁")] if space_first else []
    tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if space_first else []
    text = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*text, *strip])
    return tokenizer


def _scored_model(header: Header, vocabulary: Vocabulary) -> models.BPE:
    """The pair whose joint token scores highest merges first; what has no token becomes bytes."""
    scores = header.many("tokenizer.ggml.scores", float)
    if len(scores) != len(vocabulary.tokens):
        counts = f"{len(scores)} scores for {len(vocabulary.tokens)} tokens"
        raise UnsupportedModel(f"{header.name}: {counts}")
    return models.BPE(
        vocabulary.ids(),
        _scored_merges(vocabulary, scores),
        unk_token=_token(header, vocabulary, "unknown"),
        fuse_unk=True,
        byte_fallback=True,
    )


def _scored_merges(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, the best token first."""
    pieces = {
        token: score
        for token, kind, score in zip(vocabulary.tokens, vocabulary.types, scores, strict=True)
        if kind == NORMAL
    }
    best = sorted(pieces, key=lambda token: -pieces[token])
    return [
        (token[:cut], token[cut:])
        for token in best
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Tokens that are found in a text before it is cut; control tokens are left out of replies."""
    for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind in {UNKNOWN, CONTROL}:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])


def _add_ends(
    tokenizer: Tokenizer, header: Header, vocabulary: Vocabulary, *, begins: bool
) -> None:
    """Texts begin and end with the tokens that the file says; ``begins`` where it says nothing."""
    said = header.maybe("tokenizer.ggml.add_bos_token", bool)
    first = _token(header, vocabulary, "bos") if (begins if said is None else said) else None
    ends = header.maybe("tokenizer.ggml.add_eos_token", bool)
    last = _token(header, vocabulary, "eos") if ends else None
    around = [token for token in (first, last) if token]
    if around:
        single = [first, "$A", last]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[word for word in single if word],
            special_tokens=[(token, vocabulary.ids()[token]) for token in around],
        )


def _token(header: Header, vocabulary: Vocabulary, role: str) -> str | None:
    """The token that plays ``role``: bos, eos, unknown, padding."""
    index = header.maybe(f"tokenizer.ggml.{role}_token_id", int)
    if index is None:
        return None
    if index >= len(vocabulary.tokens):
        raise UnsupportedModel(
            f"{header.name}: {role} is token {index} of {len(vocabulary.tokens)}"
        )
    return vocabulary.tokens[index]


def _config(header: Header, vocabulary: Vocabulary) -> dict[str, object]:
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    tokens = {f"{short}_token": _token(header, vocabulary, role) for short, role in roles.items()}
    template = header.maybe("tokenizer.chat_template", str)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": header.one("llama.context_length", int),
        "clean_up_tokenization_spaces": False,
        **{name: token for name, token in tokens.items() if token is not None},
        **({} if template is None else {"chat_template": template}),
    }
