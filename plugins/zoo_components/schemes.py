"""Whether the position schemes of a stack fit its attention: what they give, and what it takes."""

from collections.abc import Iterable, Mapping, Sequence

from zoo.component import contradiction
from zoo.slots import Attention, Block, Position
from zoo_components.sharing import Alike


def check_taken(
    block: Block, position: Position | None = None, relative: Position | None = None
) -> None:
    """Raise a contradiction if the self-attention of a layer refuses what a scheme gives it."""
    schemes = {
        "position": position,
        "relative": relative,
        "block.self_position": block.own_position,
    }
    for key, scheme in schemes.items():
        if scheme is None:
            continue
        if scheme.rotates and not block.takes_rotation:
            gives = "turn queries and keys, and the self-attention takes no rotation"
        elif scheme.adds_bias and not block.takes_bias:
            gives = "add a bias to the scores, and the self-attention takes none"
        elif scheme.axes > 1 and block.self_attention and block.self_attention.rotates_elsewhere:
            gives = "go by several coordinates, and the self-attention knows positions alone"
        else:
            continue
        remedy = ': state `position = "none"` for layers with it' if key == "position" else ""
        raise contradiction(
            f"`{scheme.kind}` positions {gives}{remedy}", f"{key}.kind", "block.self_attn.kind"
        )


def check_relative(blocks: Iterable[Block], relative: Position) -> None:
    """Raise a contradiction if `relative`, which is made once for all layers, works in none of
    these, does not fit the self-attention of one, or is added to the embeddings."""
    if relative.absent:
        return
    if relative.embedded:
        raise contradiction(
            f"`{relative.kind}` positions are added to the embeddings: state them as `position`",
            "relative.kind",
        )
    attending = [block for block in blocks if block.attends]
    if not attending:
        raise contradiction(
            f"`{relative.kind}` positions work in self-attention, and no layer has one",
            "relative.kind",
            "block.self_attn.kind",
        )
    for block in attending:
        check_taken(block, relative=relative)
        _check_heads(block, relative)


def _check_heads(block: Block, relative: Position) -> None:
    for name, needed in {"head_dim": relative.rotates, "n_heads": relative.adds_bias}.items():
        own, of_scheme = getattr(block, name), getattr(relative, name)
        if needed and own is not None and own != of_scheme:
            raise contradiction(
                f"`{relative.kind}` positions of `relative` are the same for all layers, and "
                f"have {name} = {of_scheme}, but a layer has {name} = {own}",
                "relative.kind",
                "layers",
            )


def check_rotation(groups: Sequence[Alike], relative: Position) -> None:
    """Raise a contradiction if an option of rotary positions is stated and no layer with it has
    them, or if two schemes rotate one layer."""
    for group in groups:
        own = group.block.own_position
        schemes = (group.position, relative, *([own] if own else []))
        if sum(scheme.rotates for scheme in schemes) > 1:
            raise contradiction(
                "two position schemes of one layer would turn its queries and keys",
                "relative.kind",
                "block.self_position.kind",
                "position.kind",
            )
    keys = [_rotation_key(group.block) for group in groups]
    for key in filter(None, dict.fromkeys(keys)):
        of_key = [g.position for g, own in zip(groups, keys, strict=True) if own == key]
        if not any(scheme.rotates for scheme in (*of_key, relative)):
            raise contradiction(
                f"`{key}` is about rotary positions, and no layer that states it has them",
                f"block.self_attn.{key}",
                "position.kind",
            )


def _rotation_key(block: Block) -> str | None:
    """The key of an option of the self-attention without effect unless the stack's position scheme
    rotates."""
    own, attention = block.own_position, block.self_attention
    if attention is None or (own is not None and own.rotates):
        return None
    return attention.rotation_key


def check_tables(schemes: Mapping[str, Position], attentions: Sequence[Attention | None]) -> None:
    """Raise a contradiction if two schemes with tables would share a name in the stack, if the
    attention reads a table that no scheme has, or if none reads a table that does nothing else.
    `schemes` holds them by their keys; an attention that fills no slot is None."""
    tables: dict[str, tuple[str, Position]] = {}
    for key, scheme in schemes.items():
        if not scheme.layout().parts:
            continue
        other_key, other = tables.setdefault(scheme.site, (key, scheme))
        if other != scheme:
            raise contradiction(
                f"a stack has one table `{scheme.site}`, and two schemes that differ in "
                f"`{_difference(other, scheme)}` would share it: state the same one for all layers "
                "that have it",
                f"{other_key}.kind",
                f"{key}.kind",
            )
    reads = [attention and attention.reads for attention in attentions]
    for site in filter(None, reads):
        if site not in tables:
            raise contradiction(
                f"the attention of these layers reads the table `{site}`, which "
                "no position scheme of the stack has: state it as `position` or `relative`",
                "block.self_attn.kind",
                "position.kind",
            )
    for site, (key, scheme) in tables.items():
        if not (scheme.rotates or scheme.adds_bias or site in reads or None in attentions):
            raise contradiction(
                f"`{scheme.kind}` positions are a table `{site}` for an attention that reads it, "
                "and that of no layer does: choose such an attention, or other positions",
                f"{key}.kind",
                "block.self_attn.kind",
            )


def _difference(one: Position, other: Position) -> str:
    """The first key in which two schemes differ."""
    fields = type(one).model_fields
    return next(name for name in ("kind", *fields) if getattr(one, name) != getattr(other, name))
