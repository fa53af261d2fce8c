"""Specs with one or more mistakes, with their places marked and the expected messages."""

from __future__ import annotations

import re

from trials import spec

MARKS = re.compile(r"«(.*?)»|‹(.*?)›")


def rendered(marked: str, expected: list[tuple[str, ...]], file: str = "spec.toml") -> str:
    """Return the expected messages for a text with marks: «» at each error, in order, and ‹› at its
    notes. An error is its message, then its notes' messages, then `help: ...`, if any."""
    text = MARKS.sub(lambda found: found[1] or found[2] or "", marked)
    lines, places, shift = text.split("\n"), {"«": [], "‹": []}, 0
    for found in MARKS.finditer(marked):
        start = found.start() - shift
        shift += 2
        row = text.count("\n", 0, start)
        column = start - (text.rfind("\n", 0, start) + 1)
        places[found[0][0]].append((row, column, max(1, len(found[1] or found[2] or ""))))

    def shown(kind: str, mark: str, message: str) -> str:
        row, column, width = places[mark].pop(0)
        return (
            f"{file}:{row + 1}:{column + 1}: {kind}: {message}\n"
            f"{row + 1:>5} | {lines[row]}\n"
            f"      | {' ' * column}{'^' * width}\n"
        )

    told = ""
    for message, *rest in expected:
        told += shown("error", "«", message)
        for line in rest:
            told += f"      = {line}\n" if line.startswith("help: ") else shown("note", "‹", line)
    assert not any(places.values()), "a mark that no error is expected at"
    return told


def plain(marked: str) -> str:
    return MARKS.sub(lambda found: found[1] or found[2] or "", marked)


CASES: dict[str, tuple[str, list[tuple[str, ...]]]] = {
    "unknown key": (
        spec("«n_head» = 2"),
        [("unknown key `n_head`", "help: did you mean `n_heads`?")],
    ),
    "unknown key in a table": (
        spec("[encoder]", "«d_modell» = 8"),
        [("unknown key `d_modell` in `encoder`", "help: did you mean `d_model`?")],
    ),
    "unknown key in an inline table": (
        spec('ffn = { kind = "mlp", «activatoin» = "relu" }'),
        [("unknown key `activatoin` in `ffn`", "help: did you mean `activation`?")],
    ),
    "unknown dotted key": (
        spec('encoder.block.ffn.«activatoin» = "relu"'),
        [("unknown key `activatoin` in `encoder.block.ffn`", "help: did you mean `activation`?")],
    ),
    "a key of another table": (
        spec("«eps» = 1e-5"),
        [
            (
                "unknown key `eps`",
                "help: `eps` is a key of `norm`: write `norm = { eps = ... }`",
            )
        ],
    ),
    "keys beside the component that has them": (
        spec(
            'position = "rotary"',
            'norm = "scale_norm"',
            "«base» = 1e5",
            "«weight» = false",
            "[encoder]",
            'norm = "layer_norm"',
            'ffn = { kind = "mlp" }',
            '«activation» = "gelu"',
        ),
        [
            (
                "unknown key `base`",
                "help: `base` is a key of `position`: write "
                '`position = { kind = "rotary", base = ... }`',
            ),
            ("unknown key `weight`", "help: `weight` is a key of `encoder.norm`"),
            (
                "unknown key `activation` in `encoder`",
                "help: `activation` is a key of `ffn`: write it there",
            ),
        ],
    ),
    "rules for single layers outside their stack": (
        spec("[[«layers»]]", "last = 1", builder='"decoder"', without="source_vocab").replace(
            "target_vocab", "vocab"
        ),
        [
            (
                "unknown key `layers`",
                "help: `layers` is a key of `decoder`: write `[[decoder.layers]]`",
            )
        ],
    ),
    "a key of both stacks": (
        spec("«share_layers» = true"),
        [
            (
                "unknown key `share_layers`",
                "help: `share_layers` is a key of `encoder` and of `decoder`",
            )
        ],
    ),
    "a key of a slot that is empty unless stated": (
        spec("embedding = { norm = { «eps» = 1e-5 } }"),
        [
            (
                "unknown key `eps` in `embedding.norm`",
                "help: `eps` is a key of the norm `batch_norm`, `layer_norm`, `rms_norm`, "
                "`scale_norm`, `standardized_rms_norm` or `std_norm`",
            )
        ],
    ),
    "a key that no kind has": (
        spec("embedding = { norm = { «zzz» = 1e-5 } }"),
        [
            (
                "unknown key `zzz` in `embedding.norm`",
                "help: what is here has no keys; state another `kind`",
            )
        ],
    ),
    "a key of another kind": (
        spec('ffn = { kind = "mlp", «n_experts» = 8 }'),
        [
            (
                "unknown key `n_experts` in `ffn`",
                "help: `n_experts` is a key of the ffn `hash_moe`, `moe` or `normed_moe`",
            )
        ],
    ),
    "a key of another kind in the words of another library, and of other tables": (
        spec(
            'norm = { kind = "scale_norm", «bias» = true }',
            'head = { kind = "none", «tie_word_embeddings» = true }',
        ),
        [
            ("unknown key `bias` in `norm`", "help: `bias` is a key of the norm `layer_norm`"),
            (
                "unknown key `tie_word_embeddings` in `head`",
                "help: `tied` is a key of the head `linear` or `mlm`",
            ),
        ],
    ),
    "shared keys that no kind in the spec reads": (
        spec('position = "rotary"', "«max_length» = 64", "«n_experts» = 4"),
        [
            (
                "unknown key `max_length`",
                "help: `max_length` is a key of the attention `gmlp`, and of the position "
                "`learned` or `sinusoidal`",
            ),
            (
                "unknown key `n_experts`",
                "help: `n_experts` is a key of the ffn `hash_moe`, `moe` or `normed_moe`",
            ),
        ],
    ),
    "a key of another builder": (
        spec("«nsp» = true"),
        [("unknown key `nsp`", "help: `nsp` is a key of the builder `encoder`")],
    ),
    "a key of the top, below a table": (
        spec(
            "[encoder]",
            "n_layers = 1",
            "«source_vocab» = 12",
            without="source_vocab",
            builder='«"encoder_decoder"»',
        ),
        [
            (
                "the key `source_vocab` is missing: `encoder.embedding` needs it",
                "help: add `source_vocab = ...`",
            ),
            (
                "unknown key `source_vocab` in `encoder`",
                "help: `source_vocab` stands at the top of the spec, before all tables",
            ),
        ],
    ),
    "a key of the stack around": (
        spec("[decoder.block.self_attn]", '«norm_placement» = "post"', "«base» = 3"),
        [
            (
                "unknown key `norm_placement` in `decoder.block.self_attn`",
                "help: `norm_placement` is a key of `decoder`",
            ),
            (
                "unknown key `base` in `decoder.block.self_attn`",
                "help: `base` is a key of `decoder.position`",
            ),
        ],
    ),
    "a key of the whole stack, in a rule": (
        spec("[[decoder.layers]]", "at = [1]", '«norm_placement» = "post"'),
        [
            (
                "unknown key `norm_placement` in `decoder.layers.0`",
                "help: `norm_placement` is for all layers: write it in `[decoder]`; a rule states "
                "the norms of each branch, as in `self_attn = { norms = [...] }`",
            )
        ],
    ),
    "another library's name for a key of another table": (
        spec("«tie_word_embeddings» = true"),
        [
            (
                "unknown key `tie_word_embeddings`",
                "help: `tied` is a key of `head`: write `head = { tied = ... }`",
            )
        ],
    ),
    "a boolean for an integer": (
        spec(d_ff="«true»"),
        [("`d_ff` must be an integer, not the boolean `true`",)],
    ),
    "a float for an integer": (
        spec(d_ff="«16.0»"),
        [("`d_ff` must be an integer, not the float `16.0`",)],
    ),
    "a string for an integer": (
        spec(n_layers='«"2"»'),
        [("`n_layers` must be an integer, not the string `2`",)],
    ),
    "a table for an integer": (
        spec(d_ff="«{ every = 2 }»"),
        [
            (
                "`d_ff` must be an integer, not a table",
                "help: a value for each layer is written `{ per_layer = [...] }`, and one for some "
                "layers in a rule of `layers`",
            )
        ],
    ),
    "a table for a width of all layers": (
        spec(d_model="«{ every = 2 }»"),
        [("`d_model` must be an integer, not a table",)],
    ),
    "an array for a component of each layer": (
        spec('self_attn = «["multi_head", "none"]»'),
        [
            (
                "`self_attn` must be a name or a table with a `kind`, not an array",
                "help: a value for each layer is written `{ per_layer = [...] }`",
            )
        ],
    ),
    "an array for an integer": (
        spec(d_ff="«[16]»"),
        [
            (
                "`d_ff` must be an integer, not an array",
                "help: a value for each layer is written `{ per_layer = [...] }`",
            )
        ],
    ),
    "an array for a width of all layers": (
        spec(d_model="«[16, 16]»"),
        [("`d_model` must be an integer, not an array",)],
    ),
    "a boolean for a number": (
        spec("dropout = «true»"),
        [("`dropout` must be a number, not the boolean `true`",)],
    ),
    "an integer for a boolean": (
        spec("share_embeddings = «1»"),
        [("`share_embeddings` must be `true` or `false`, not the integer `1`",)],
    ),
    "an integer for a string": (
        spec(name="«3»"),
        [("`name` must be a string, not the integer `3`",)],
    ),
    "an integer for a kind": (
        spec("norm = { kind = «3» }"),
        [
            (
                "`kind` must be a string, not the integer `3`",
                "help: allowed here: `batch_norm`, `dynamic_tanh`, `layer_norm`, `none`, "
                "`rms_norm`, `scale_norm`, `standardized_rms_norm`, `std_norm`",
            )
        ],
    ),
    "an integer for a component": (
        spec("norm = «3»"),
        [
            (
                "`norm` must be a name or a table with a `kind`, not the integer `3`",
                "help: allowed here: `batch_norm`, `dynamic_tanh`, `layer_norm`, `none`, "
                "`rms_norm`, `scale_norm`, `standardized_rms_norm`, `std_norm`",
            )
        ],
    ),
    "an integer for a table": (
        spec("encoder = «3»"),
        [
            (
                "`encoder` must be a table, not the integer `3`",
                "help: write its keys below `[encoder]`",
            )
        ],
    ),
    "an item of an array": (
        spec('attention = { kind = "multi_head", bias = ["q", «"vv"»] }'),
        [
            (
                "`bias` must be one of `q`, `k`, `v`, `o`, not the string `vv`",
                "help: did you mean `v`?",
            )
        ],
    ),
    "an array for all components, of which one takes none": (
        spec('bias = «["q"]»'),
        [
            (
                "`bias` of `encoder.block.ffn` must be `true` or `false` or `down`, not an array",
                "help: the table of each component may state its own: the nearest counts",
            )
        ],
    ),
    "a number for a word or an array": (
        spec('attention = { kind = "multi_head", bias = «3» }'),
        [("`bias` must be `true` or `false` or an array, not the integer `3`",)],
    ),
    "one of several types": (
        spec("""embedding = { kind = "tokens", scale = «"sqrt_d"» }"""),
        [
            (
                "`scale` must be a number or one of `sqrt_d_model`, `sqrt_d_model_rounded`, not "
                "the string `sqrt_d`",
                "help: did you mean `sqrt_d_model`?",
            )
        ],
    ),
    "below the least value": (
        spec(n_layers="«0»"),
        [("`n_layers` must be at least 1, not the integer `0`",)],
    ),
    "beyond the range": (
        spec("dropout = «1.5»"),
        [("`dropout` must be less than 1, not the float `1.5`",)],
    ),
    "another word": (
        spec('norm_placement = «"prre"»'),
        [
            (
                "`norm_placement` must be one of `pre`, `post`, `sandwich`, `post_branch`, "
                "`parallel`, `none`, not the string `prre`",
                "help: did you mean `pre`?",
            )
        ],
    ),
    "an unknown kind": (
        spec('ffn = «"mpl"»'),
        [("unknown ffn `mpl`", "help: did you mean `mlp`?")],
    ),
    "an unknown kind in a table": (
        spec('norm = { kind = «"rms"», eps = 1e-5 }'),
        [("unknown norm `rms`", "help: did you mean `rms_norm`?")],
    ),
    "an unknown builder": (
        spec(builder='«"encoder_decodr"»'),
        [("unknown builder `encoder_decodr`", "help: did you mean `encoder_decoder`?")],
    ),
    "heads that do not divide the width": (
        spec(n_heads="«3»", d_model="‹8›"),
        [
            (
                "d_model = 8 is not divisible by n_heads = 3; state `head_dim`, or change one of "
                "the two",
                "`d_model` is here",
            )
        ],
    ),
    "keys that contradict each other": (
        spec(
            "share_embeddings = «true»",
            source_vocab="‹10›",
            target_vocab="‹11›",
        ),
        [
            (
                "one token table cannot serve source_vocab = 10 and target_vocab = 11",
                "`source_vocab` is here",
                "`target_vocab` is here",
            )
        ],
    ),
    "padding beyond the vocabulary of one stack": (
        spec("pad_id = «10»", source_vocab="‹10›"),
        [("pad_id = 10 is beyond the vocabulary of 10 tokens", "`source_vocab` is here")],
    ),
    "a missing key": (
        spec(builder='«"encoder_decoder"»', without="d_ff"),
        [
            (
                "the key `d_ff` is missing: `encoder.block.ffn.d_ff` and `decoder.block.ffn.d_ff` "
                "need it",
                "help: add `d_ff = ...`",
            )
        ],
    ),
    "a missing key of a table that is written": (
        spec("[«encoder»]", "n_layers = 1", "[decoder]", "d_model = 8", without="d_model"),
        [("the key `d_model` is missing: `encoder.d_model` needs it", "help: add `d_model = ...`")],
    ),
    "two wrong items of an array": (
        spec("[encoder.block.ffn]", 'norms = [«"prex"», "pre", «"poost"»]'),
        [
            (
                "`norms` must be one of `pre`, `post`, `out`, not the string `prex`",
                "help: did you mean `pre`?",
            ),
            (
                "`norms` must be one of `pre`, `post`, `out`, not the string `poost`",
                "help: did you mean `post`?",
            ),
        ],
    ),
    "a missing key beside a kind": (
        spec("[encoder.block.ffn]", 'kind = «"moe"»', "top_k = 1"),
        [
            (
                "the key `n_experts` is missing: `encoder.block.ffn.n_experts` needs it",
                "help: add `n_experts = ...` beside this `kind`",
            )
        ],
    ),
    "several missing keys of one component": (
        spec("[encoder.block.ffn]", 'kind = «"moe"»'),
        [
            (
                "the keys `n_experts` and `top_k` are missing: `encoder.block.ffn` needs them",
                "help: add `n_experts = ...` and `top_k = ...` beside this `kind`",
            )
        ],
    ),
    "missing keys of a kind that is one of a list": (
        spec("[encoder.block]", 'ffn = { per_layer = ["mlp", «"moe"»] }'),
        [
            (
                "the keys `n_experts` and `top_k` are missing: `encoder.layers.0.block.ffn` needs "
                "them",
                'help: write `{ kind = "moe", n_experts = ..., top_k = ... }` in place of `"moe"`',
            )
        ],
    ),
    "a kind that contradicts what is around it": (
        spec("[decoder.block]", 'self_position = «"sinusoidal"»'),
        [("`sinusoidal` positions are added to the embeddings; a layer cannot have its own",)],
    ),
    "a table of another builder": (
        """format = 1
name = "bad"
builder = "decoder"
vocab = 10
d_model = 8
n_heads = 2
d_ff = 16

[decoder]
n_layers = 2

[«encoder»]
n_layers = 2
""",
        [
            (
                "unknown key `encoder`",
                "help: `encoder` is a key of the builder `encoder` or `encoder_decoder`",
            )
        ],
    ),
    "the words of another library": (
        spec(d_model="8", **{"«hidden_size»": "8", "«intermediate_size»": "16"}),
        [
            ("unknown key `hidden_size`", "help: did you mean `d_model`?"),
            ("unknown key `intermediate_size`", "help: did you mean `d_ff`?"),
        ],
    ),
    "another library's name for a key of both stacks": (
        spec("«type_vocab_size» = 2"),
        [
            (
                "unknown key `type_vocab_size`",
                "help: `n_types` is a key of `embedding`: write `embedding = { n_types = ... }`",
            ),
        ],
    ),
    "a kind in the words of another library": (
        spec(init='«"glorot_uniform"»'),
        [("unknown init `glorot_uniform`", "help: did you mean `xavier`?")],
    ),
    "an unknown kind like one that needs keys": (
        spec('position = «"rotary_yarm"»'),
        [("unknown position `rotary_yarm`", "help: did you mean `rotary_yarn`?")],
    ),
    "a missing key of a kind that is a word": (
        spec('head = «"token_classifier"»'),
        [
            (
                "the key `n_classes` is missing: `head.n_classes` needs it",
                'help: write `head = { kind = "token_classifier", n_classes = ... }`',
            )
        ],
    ),
    "a missing key of a kind that several components take": (
        spec(
            'ffn = { kind = «"moe"», top_k = 1 }',
            "[[decoder.layers]]",
            "at = [0]",
            'ffn = { kind = «"moe"», top_k = 2 }',
        ),
        [
            (
                "the key `n_experts` is missing: `encoder.block.ffn.n_experts` and "
                "`decoder.block.ffn.n_experts` need it",
                "help: add `n_experts = ...` beside this `kind`",
            ),
            (
                "the key `n_experts` is missing: `decoder.layers.0.block.ffn.n_experts` needs it",
                "help: add `n_experts = ...` beside this `kind`",
            ),
        ],
    ),
    "a missing key that only some kinds need": (
        spec(builder='«"encoder_decoder"»', without="target_vocab"),
        [
            (
                "the key `target_vocab` is missing: `decoder.embedding` needs it",
                "help: add `target_vocab = ...`",
            )
        ],
    ),
    "a missing key that another kind would not need": (
        spec(
            'decoder.embedding = "vectors"', builder='«"encoder_decoder"»', without="target_vocab"
        ),
        [
            (
                "the key `target_vocab` is missing: `head` needs it",
                'help: add `target_vocab = ...`, or choose `head = "none"`',
            )
        ],
    ),
    "a number for a list of layers": (
        spec("[[decoder.layers]]", "at = «1»", "d_ff = 8"),
        [("`at` must be a list of layer numbers: write `[1]`",)],
    ),
    "a layer that the stack does not have": (
        spec("[[decoder.layers]]", "at = «[0, 7]»", "d_ff = 8"),
        [("there is no layer 7: they are 0 to 1",)],
    ),
    "a text in a list of layers": (
        spec("[[decoder.layers]]", 'at = «[0, "1"]»', "d_ff = 8"),
        [("`at` must be a list of layer numbers, from 0",)],
    ),
    "a table for a number of layers": (
        spec("[[decoder.layers]]", "every = «{ n = 2 }»", "d_ff = 8"),
        [("`every` must be an integer of at least 1",)],
    ),
    "a rule that is no list": (
        spec("[encoder]", "layers = «2»", "[decoder.«layers»]", "at = [1]", "d_ff = 8"),
        [
            (
                "`layers` must be a list of tables, not the integer `2`",
                "help: write [[encoder.layers]]",
            ),
            ("`layers` must be a list of tables", "help: write [[decoder.layers]]"),
        ],
    ),
    "a key of a component, in a rule": (
        spec("[[encoder.layers]]", "at = [1]", "«softcap» = 8.0"),
        [
            (
                "unknown key `softcap` in `encoder.layers.0`",
                "help: write `block.self_attn.softcap = ...`",
            )
        ],
    ),
    "a key of several components, in a rule": (
        spec("[[decoder.layers]]", "at = [1]", "«softcap» = 8.0", "«eps» = 1e-6"),
        [
            (
                "unknown key `softcap` in `decoder.layers.0`",
                "help: `softcap` is a key of `self_attn` and of `cross_attn`",
            ),
            (
                "unknown key `eps` in `decoder.layers.0`",
                "help: `eps` is a key of `norm`: write `norm = { eps = ... }`",
            ),
        ],
    ),
    "a key of components without a name in a rule": (
        spec(
            'encoder.block.self_attn.kind = "differential"',
            "[[encoder.layers]]",
            "at = [1]",
            "«eps» = 1e-6",
        ),
        [
            (
                "unknown key `eps` in `encoder.layers.0`",
                "help: `eps` is a key of `block.self_attn.norm` and of "
                "`block.self_attn.head_norm` and of `block.ffn.norm` and of `norm`",
            )
        ],
    ),
    "a key of the same component in both stacks": (
        spec('head = { kind = "linear", «eps» = 1e-6 }'),
        [
            (
                "unknown key `eps` in `head`",
                "help: `eps` is a key of `encoder.block.self_attn.norm` and of "
                "`decoder.block.self_attn.norm`",
            )
        ],
    ),
    "a null": (
        spec("pad_id = «n»ull"),
        [
            (
                "not TOML: invalid value",
                'help: TOML has no null: leave the key out, or write `"none"`',
            )
        ],
    ),
    "no format": (
        "«n»" + spec(without="format")[1:],
        [("the key `format` is missing", "help: add `format = 1` at the top")],
    ),
    "a missing key at the top": (
        "«f»" + spec(without="name")[1:],
        [("the key `name` is missing", "help: add `name = ...` at the top")],
    ),
    "a key without effect": (
        spec("[encoder]", "‹n_heads› = 2", "[decoder]", "‹n_heads› = 4").replace(
            "\nn_heads", "\n«n_heads»", 1
        ),
        [
            (
                "`n_heads` has no effect: all that read it state their own",
                "`n_heads` is stated nearer here",
                "`n_heads` is stated nearer here",
                "help: remove it, or the nearer values",
            )
        ],
    ),
    "a table without effect": (
        spec(
            '«norm» = { kind = "rms_norm" }',
            '[encoder]\n‹norm› = "layer_norm"',
            '[decoder]\n‹norm› = "layer_norm"',
        ),
        [
            (
                "`norm` has no effect: all that read it state their own",
                "`norm` is stated nearer here",
                "`norm` is stated nearer here",
                "help: remove it, or the nearer values",
            )
        ],
    ),
    "a rule that the stack's own block goes over": (
        spec(
            '[decoder.block.ffn]\n‹activation› = "gelu"\n[[decoder.layers]]\nfirst = 1\n'
            'ffn = { «activation» = "relu" }'
        ),
        [
            (
                "`activation` in `decoder.layers.0.ffn` has no effect: all that read it state "
                "their own",
                "`activation` is stated nearer here",
                "help: to go over that in these layers, write `block.ffn.activation = ...` in the "
                "rule",
            )
        ],
    ),
    "a rule's value that the stack's own block goes over": (
        spec("[decoder.block]\n‹dropout› = 0.2\n[[decoder.layers]]\nfirst = 1\n«dropout» = 0.4"),
        [
            (
                "`dropout` in `decoder.layers.0` has no effect: all that read it state their own",
                "`dropout` is stated nearer here",
                "help: to go over that in these layers, write `block.dropout = ...` in the rule",
            )
        ],
    ),
    "a name with a slash": (
        spec(name='«"a/b"»'),
        [
            (
                "`name` has up to 128 of the letters A to Z and a to z, digits, `_`, `-` and `.`, "
                "and begins with no `-` or `.`",
            )
        ],
    ),
    "a format of the future": (
        spec(format="«2»"),
        [("spec format 2 is not known", "help: this zoo reads format 1")],
    ),
    "a format before the first": (
        spec(format="«0»"),
        [("spec format 0 is not known", "help: this zoo reads format 1")],
    ),
    "a boolean for the format": (
        spec(format="«true»"),
        [("`format` must be an integer, not the boolean `true`",)],
    ),
    "a key written twice": (
        spec("«d_ff» = 32").replace("d_ff = 16", "‹d_ff› = 16"),
        [("`d_ff` is written twice", "first written here", "help: keep one of the two")],
    ),
    "a table written twice": (
        spec("[‹encoder›]", "n_layers = 1", "[decoder]", "[«encoder»]", "d_ff = 3"),
        [("`encoder` is written twice", "first written here", "help: keep one of the two")],
    ),
    "a key written twice in an inline table": (
        spec('ffn = { ‹kind› = "mlp", «kind» = "glu" }'),
        [("`ffn.kind` is written twice", "first written here", "help: keep one of the two")],
    ),
    "a key written twice, once quoted": (
        spec('«"d_ff"» = 32').replace("d_ff = 16", "‹d_ff› = 16"),
        [("`d_ff` is written twice", "first written here", "help: keep one of the two")],
    ),
    "an addition to an inline table": (
        spec('‹ffn› = { kind = "mlp" }', 'ffn.«activation» = "gelu"'),
        [
            (
                "`ffn.activation` adds to `ffn`, which is complete",
                "first written here",
                "help: write it where the other keys are",
            )
        ],
    ),
    "a table for a key that has a value": (
        spec('‹ffn› = "mlp"', "[ffn.«norm»]", "eps = 1e-5"),
        [
            (
                "`ffn.norm` adds to `ffn`, which is complete",
                "first written here",
                "help: write it where the other keys are",
            )
        ],
    ),
    "nan": (spec("dropout = «nan»"), [("`nan` is not a finite number",)]),
    "infinity": (spec("dropout = «-inf»"), [("`-inf` is not a finite number",)]),
    "a date": (spec("dropout = «1979-05-27»"), [("a date has no place in a spec",)]),
    "a time": (spec("dropout = «07:32:00»"), [("a time has no place in a spec",)]),
    "a date and time": (
        spec("dropout = «1979-05-27T07:32:00Z»"),
        [("a datetime has no place in a spec",)],
    ),
    "nan in an array": (
        spec('attention = { kind = "multi_head", bias = ["q", «nan»] }'),
        [("`nan` is not a finite number",)],
    ),
    "an integer that JSON cannot keep": (
        spec("max_length = «9007199254740992»"),
        [
            (
                "the integer is beyond 9,007,199,254,740,991, the largest that every JSON reader "
                "keeps",
            )
        ],
    ),
    "a negative one": (
        spec("max_length = «-9007199254740993»"),
        [
            (
                "the integer is beyond 9,007,199,254,740,991, the largest that every JSON reader "
                "keeps",
            )
        ],
    ),
    "a string without quotes": (
        spec("ffn = «m»lp"),
        [("not TOML: invalid value", 'help: text is quoted: `"mlp"`')],
    ),
    "Python's True": (
        spec("share_embeddings = «T»rue"),
        [("not TOML: invalid value", "help: write `true`")],
    ),
    "a number without its zero": (
        spec("dropout = «.»1"),
        [("not TOML: invalid value", "help: write `0.1`")],
    ),
    "a string that is not closed": (
        spec('ffn = "mlp«»', "dropout = 0.1"),
        [("not TOML: the string is not closed on its line",)],
    ),
    "a table between braces over several lines": (
        spec("ffn = {«»", '  kind = "mlp",', "}"),
        [
            (
                "not TOML: the inline table is not closed on its line",
                "help: write it on one line, or its keys below a `[head]`",
            )
        ],
    ),
    "a braced table that begins another key with nothing": (
        spec('ffn = { kind = "mlp", «=» 1 }'),
        [("not TOML: invalid initial character for a key part",)],
    ),
    "an array that is not closed": (
        spec("x = [1,", "«y» = 1", "z = 1"),
        [
            (
                "not TOML: unclosed array",
                "help: the array above needs a `,` or its `]` before this line",
            )
        ],
    ),
    "an array of several lines without a comma": (
        spec("x = [1 «2»]", "y = [", "  1", "  «2»,", "]", "z = 1"),
        [
            ("not TOML: unclosed array",),
            (
                "not TOML: unclosed array",
                "help: the array above needs a `,` or its `]` before this line",
            ),
        ],
    ),
    "curly quotes": (
        spec("ffn = «\u201c»mlp\u201d"),
        [("not TOML: invalid value", 'help: write straight quotes: `"`')],
    ),
    "a Cyrillic letter": (
        spec("dropo«\u0443»t = 0.1"),
        [
            (
                "not TOML: expected '=' after a key in a key/value pair",
                "help: this is U+0443, cyrillic small letter u; it can stand between quotes only",
            )
        ],
    ),
    "a builder that is misspelled": (
        spec(without="builder").replace("source_vocab", '«bulder» = "decoder"\nsource_vocab'),
        [("the key `builder` is missing", "help: did you mean `builder`?")],
    ),
    "several lines that are not TOML": (
        spec('ffn «"»mlp"', "dropout = «.»1", "causal = «y»es"),
        [
            ("not TOML: expected '=' after a key in a key/value pair",),
            ("not TOML: invalid value", "help: write `0.1`"),
            ("not TOML: invalid value", 'help: text is quoted: `"yes"`'),
        ],
    ),
    "a line that is not TOML, and a key twice": (
        spec("dropout = «.»1", "«d_ff» = 32").replace("d_ff = 16", "‹d_ff› = 16"),
        [
            ("not TOML: invalid value", "help: write `0.1`"),
            ("`d_ff` is written twice", "first written here", "help: keep one of the two"),
        ],
    ),
    "layer rules": (
        spec(
            "[[encoder.layers]]",
            "every = «0»",
            "d_ff = 4",
            "[[decoder.layers]]",
            "at = [0]",
            "«dropuot» = 0.5",
        ),
        [
            ("`every` must be an integer of at least 1",),
            (
                "unknown key `dropuot` in `decoder.layers.0`",
                "help: did you mean `dropout`?",
            ),
        ],
    ),
    "six mistakes of six sorts": (
        """format = 1
name = "bad"
builder = "decoder"
vocab = 10
‹d_ff› = 16
n_layers = «true»
«n_head» = 3
norm = «"rms"»
dropout = «nan»
«d_ff» = 3
n_heads = «3»
d_model = ‹8›
""",
        [
            ("`n_layers` must be an integer, not the boolean `true`",),
            ("unknown key `n_head`", "help: did you mean `n_heads`?"),
            ("unknown norm `rms`", "help: did you mean `rms_norm`?"),
            ("`nan` is not a finite number",),
            ("`d_ff` is written twice", "first written here", "help: keep one of the two"),
            (
                "d_model = 8 is not divisible by n_heads = 3; state `head_dim`, or change one of "
                "the two",
                "`d_model` is here",
            ),
        ],
    ),
}
