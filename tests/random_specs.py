"""Random small valid specs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import zoo

REGISTRY = zoo.load_registry()
D_FF = {"d_ff": st.integers(1, 64)}
FFN = st.one_of(
    st.fixed_dictionaries({"kind": st.sampled_from(["mlp", "glu"]), **D_FF}),
    st.fixed_dictionaries(
        {"kind": st.just("residual_stack")},
        optional={"expansion_factor": st.floats(0.5, 8), "n_units": st.integers(1, 3)},
    ),
)
OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "norm": st.one_of(
        st.sampled_from(["rms_norm", "none", "batch_norm"]),
        st.fixed_dictionaries(
            {"kind": st.just("layer_norm")},
            optional={"eps": st.floats(0, 1e3, exclude_min=True), "bias": st.booleans()},
        ),
    ),
    "attention": st.fixed_dictionaries(
        {"kind": st.just("multi_head")},
        optional={
            "bias": st.one_of(st.booleans(), st.lists(st.sampled_from("qkvo"), unique=True)),
            "scale": st.floats(1e-30, 1e30),
            "head_dim": st.integers(1, 9),
        },
    ),
    "position": st.sampled_from(["none", "sinusoidal", {"kind": "learned", "max_length": 3}]),
    "dropout": st.floats(0, 1, exclude_max=True),
    "norm_placement": st.sampled_from(["pre", "post", "sandwich", "post_branch"]),
    "pad_id": st.integers(0, 9),
}
INIT = st.fixed_dictionaries({"kind": st.just("normal")}, optional={"std": st.floats(1e-9, 9)})
NAME = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw small specs, with each key at the top or in the stack's table."""
    top: dict[str, Any] = {"format": 1, "name": draw(NAME), "builder": "decoder"}
    top["vocab"] = draw(st.integers(10, 10**6))
    stack: dict[str, Any] = {}
    required = {
        "n_layers": st.integers(1, 3),
        "d_model": st.sampled_from([4, 8, 12]),
        "n_heads": st.sampled_from([1, 2, 4]),
        "ffn": FFN,
    }
    drawn = draw(st.fixed_dictionaries(required, optional=OPTIONAL))
    for key, value in drawn.items():
        (top if draw(st.booleans()) else stack)[key] = value
    if draw(st.booleans()):
        top["init"] = draw(INIT)
    return {**top, "decoder": stack} if stack else top
