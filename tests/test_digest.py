"""The digest of a spec, against an independent implementation: SHA-256 of RFC 8785 canonical
JSON."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from random_specs import REGISTRY, specs
from trials import spec as text_of

import zoo


def canonical(value: Any) -> str:
    """RFC 8785 for the values of a spec: sorted keys, no spaces, numbers as in ECMAScript."""
    if isinstance(value, dict):
        # Sorted by UTF-16 code units; for the ASCII keys of a spec, by character.
        items = ",".join(f"{json.dumps(key)}:{canonical(value[key])}" for key in sorted(value))
        return f"{{{items}}}"
    if isinstance(value, list):
        return f"[{','.join(map(canonical, value))}]"
    if isinstance(value, float):
        return ecmascript(value)
    return json.dumps(value)


def ecmascript(value: float) -> str:
    """Number::toString of ECMA-262, section 6.1.6.1.20, from the shortest digits of `repr`."""
    if value == 0:
        return "0"
    sign, digits, exponent = ("-" if value < 0 else ""), *shortest(abs(value))
    k, n = len(digits), exponent
    if k <= n <= 21:
        return sign + digits + "0" * (n - k)
    if 0 < n <= 21:
        return f"{sign}{digits[:n]}.{digits[n:]}"
    if -6 < n <= 0:
        return f"{sign}0.{'0' * -n}{digits}"
    power = f"e{'+' if n > 0 else '-'}{abs(n - 1)}"
    return f"{sign}{digits[0]}{'.' + digits[1:] if k > 1 else ''}{power}"


def shortest(value: float) -> tuple[str, int]:
    """The shortest digits that read back as `value`, and the place of the point after the first."""
    mantissa, _, power = f"{value!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    zeros = len(whole + fraction) - len(digits)
    point = len(whole) - zeros + int(power or 0)
    return digits.rstrip("0"), point


# RFC 8785, appendix B.
RFC_NUMBERS = [
    (0.0, "0"),
    (-0.0, "0"),
    (5e-324, "5e-324"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (9007199254740992.0, "9007199254740992"),
    (295147905179352830000.0, "295147905179352830000"),
    (9.999999999999997e22, "9.999999999999997e+22"),
    (1e23, "1e+23"),
    (1.0000000000000001e23, "1.0000000000000001e+23"),
    (999999999999999700000.0, "999999999999999700000"),
    (1e21, "1e+21"),
    (9.999999999999997e-7, "9.999999999999997e-7"),
    (0.000001, "0.000001"),
    (333333333.3333332, "333333333.3333332"),
]


@pytest.mark.parametrize(("value", "text"), RFC_NUMBERS)
def test_the_independent_canonical_form_writes_the_numbers_of_the_rfc(
    value: float, text: str
) -> None:
    assert ecmascript(value) == text


@given(data=specs())
@settings(max_examples=100)
def test_the_digest_is_that_of_the_canonical_json(data: dict[str, Any]) -> None:
    spec = zoo.read_spec(data, registry=REGISTRY)
    text = canonical(spec.to_dict())
    assert spec.canonical_json == text.encode()
    assert spec.digest == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_the_digest_tells_a_model_and_not_how_it_is_written(project: Path) -> None:
    """Not on the order, the comments, the short or full form, or the number of files."""
    stated = text_of('ffn = "glu"', "dropout = 0")
    spec = zoo.read_spec(stated)
    shuffled = "# a comment\n" + "\n".join(reversed(stated.strip().split("\n"))) + "  # another\n"
    full = spec.to_toml()
    for text in (
        shuffled.replace('ffn = "glu"', 'ffn.kind = "glu"'),
        stated.replace("dropout = 0", "dropout = -0.0e3"),
        full,
        full.replace("\n", "  # x\n"),
    ):
        assert text != stated
        assert zoo.read_spec(text).digest == spec.digest
    (project / "base.toml").write_text(text_of())
    (project / "child.toml").write_text('extends = "base"\nffn = "glu"\n')
    assert zoo.read_spec("child.toml").digest == spec.digest
    for text in (stated + "pad_id = 1\n", stated.replace('"bad"', '"other"')):
        assert zoo.read_spec(text).digest != spec.digest
