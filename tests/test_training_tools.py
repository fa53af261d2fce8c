"""Chats in which tools are called: they are written and learned as `transformers` writes and marks
them, by templates of the shapes that published models have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast
from trials import Refused, said
from word_tokenizers import word_tokenizer

import zoo
from zoo.registry import load_registry
from zoo.running import chat as chat_module
from zoo.running.tokenized import read_text
from zoo.training.batches import IGNORED, Row
from zoo.training.objective import encode_parts, objective_of
from zoo.training.recipe import read_recipe
from zoo.training.recipe_data import find_chats, find_data
from zoo.training.recipe_tokens import make_tokens
from zoo.training.start import find_start
from zoo.training.tokens import Tokens

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot|>", "[INST]", "[/INST]", "[CALLS]"]
WORDS = ["[UNK]", *SPECIAL, *(chr(code) for code in range(32, 127)), "\n", "é"]
RECIPE = """\
format = 1
name = "calling"
model = "mine"

[data]
kind = "jsonl"
train = "data.jsonl"
messages = "messages"

[tokenizer]
kind = "of_model"
eos = "END"

[optimizer]
kind = "adamw"
lr = 1e-2

[schedule]
kind = "constant"

[training]
steps = 2
batch_tokens = 4000
max_length = 4000
"""

# --- templates ----------------------------------------------------------------------------------

BLOCKS = """\
{%- if tools or messages[0].role == "system" %}
    {{- "<|im_start|>system\n" }}
    {%- if messages[0].role == "system" %}{{ messages[0].content }}{% endif %}
    {%- if tools %}
        {{- "\nTools:" }}
        {%- for tool in tools %}{{ "\n" ~ tool | tojson }}{% endfor %}
    {%- endif %}
    {{- "<|im_end|>\n" }}
{%- endif %}
{%- for message in messages if message.role != "system" %}
    {%- if message.role == "assistant" %}
        {{- "<|im_start|>assistant\n" }}
        {%- generation %}
        {%- if message.content %}{{ message.content }}{% endif %}
        {%- if message.content and message.tool_calls %}{{ "\n" }}{% endif %}
        {%- for call in message.tool_calls %}
            {%- set call = call.function if call.function else call %}
            {{- '<call>{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- "}</call>" ~ ("" if loop.last else "\n") }}
        {%- endfor %}
        {{- "<|im_end|>" }}
        {%- endgeneration %}
        {{- "\n" }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem.role != "tool" %}{{ "<|im_start|>user" }}{% endif %}
        {{- "\n<result>" ~ message.content ~ "</result>" }}
        {%- if loop.last or loop.nextitem.role != "tool" %}{{ "<|im_end|>\n" }}{% endif %}
    {%- else %}
        {{- "<|im_start|>" ~ message.role ~ "\n" ~ message.content ~ "<|im_end|>\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}"""
"""As of Qwen: the tools are in the system message, and results in one of the user."""
THINKING = BLOCKS.replace(
    "{%- if message.content %}{",
    """\
        {%- set asked = namespace(last=-1) %}
        {%- for one in messages if one.role == "user" %}
            {%- set asked.last = loop.index0 %}
        {%- endfor %}
        {%- set users = messages[:loop.index0] | selectattr("role", "equalto", "user") | list %}
        {%- if message.reasoning_content and (users | length) > asked.last %}
            {{- "<think>" ~ message.reasoning_content ~ "</think>" }}
        {%- endif %}
        {%- if message.content %}{""",
)
"""As of Qwen 3: thoughts are kept from the last question on, and with them those before calls."""
FIRST_USER = """\
{{- bos_token }}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{{- "<|im_start|>system\nDate: " ~ strftime_now("%Y") }}
{%- if tools is not none %}{{ "\nEnvironment: tools" }}{% endif %}
{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if message.role == "user" and loop.first and tools is not none %}
        {{- "<|im_start|>user\nCall these:\n" }}
        {%- for tool in tools %}{{ tool | tojson(indent=4) ~ "\n" }}{% endfor %}
        {{- message.content | trim ~ "<|eot|>" }}
    {%- elif message.role == "assistant" %}
        {{- "<|im_start|>assistant\n" }}
        {%- generation %}
        {%- if "tool_calls" in message %}
            {%- if message.tool_calls | length != 1 %}
                {{- raise_exception("one call at a time") }}
            {%- endif %}
            {%- set call = message.tool_calls[0].function %}
            {{- '{"name": "' ~ call.name ~ '", "parameters": ' ~ call.arguments | tojson ~ "}" }}
        {%- else %}
            {{- message["content"] | trim }}
        {%- endif %}
        {{- "<|eot|>" }}
        {%- endgeneration %}
    {%- elif message.role in ("tool", "ipython") %}
        {{- "<|im_start|>ipython\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- else %}
        {{- "<|im_start|>" ~ message.role ~ "\n" ~ message.content | trim ~ "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}"""
"""As of Llama 3.1: the tools are in the first message of the user."""
LAST_USER = """\
{%- set users = messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {%- if tools is not none and message == users[-1] %}
            {{- "[INST]TOOLS[" }}
            {%- for tool in tools %}
                {{- tool.function | tojson ~ (", " if not loop.last else "") }}
            {%- endfor %}
            {{- "]" }}
        {%- endif %}
        {{- "[INST]" ~ message.content ~ "[/INST]" }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {%- generation %}
        {{- "[CALLS][" }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{ raise_exception("9 characters") }}{% endif %}
            {{- (call.function | tojson)[:-1] ~ ', "id": "' ~ call.id ~ '"}' }}
            {{- ", " if not loop.last else "]" ~ eos_token }}
        {%- endfor %}
        {%- endgeneration %}
    {%- elif message.role == "assistant" %}
        {%- generation %}{{ " " ~ message.content ~ eos_token }}{% endgeneration %}
    {%- elif message.role == "tool" %}
        {{- '[INST]{"content": ' ~ message.content | tojson ~ ', "id": "' }}
        {{- message.tool_call_id ~ '"}[/INST]' }}
    {%- endif %}
{%- endfor %}"""
"""As of Mistral: the tools are before the last question, and nothing begins an answer."""
PLAIN = """\
{%- for message in messages %}
    {{- "<|im_start|>" ~ message.role ~ "\n" }}
    {%- if message.role == "assistant" %}
        {%- generation %}{{ message.content ~ "<|im_end|>" }}{% endgeneration %}{{ "\n" }}
    {%- else %}
        {{- message.content ~ "<|im_end|>\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}"""
NAMED = {"default": PLAIN, "tool_use": BLOCKS}
"""As of Hermes: chats with tools have a template of their own."""

# --- data ---------------------------------------------------------------------------------------


def tool(name: str, **properties: str) -> dict[str, Any]:
    """The schema of a tool whose arguments are of these types."""
    kinds: dict[str, Any] = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": kinds, "required": [*kinds]}
    function = {"name": name, "description": f"<{name}> & more", "parameters": parameters}
    return {"type": "function", "function": function}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A call of a tool."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"{name:0<9}", "type": "function", "function": function}


TOOLS = [tool("weather", city="string", days="integer"), tool("time", zone="string")]
ASKED = {"role": "user", "content": "Rain in Orléans?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [call("weather", city="é", days=2)]}
FOUND = {"role": "tool", "name": "weather", "tool_call_id": "weather00", "content": '{"rain": 1}'}
TOLD = {"role": "assistant", "content": "Yes."}
AGAIN = [
    {"role": "user", "content": "And the time?"},
    {"role": "assistant", "tool_calls": [call("time", zone="CET")]},
    {"role": "tool", "name": "time", "tool_call_id": "time00000", "content": "12"},
    {"role": "assistant", "content": "Noon.", "tool_calls": None},
]
CHAT: list[dict[str, Any]] = [ASKED, CALLED, FOUND, TOLD, *AGAIN]
TWO_CALLS = [
    {"role": "system", "content": "Be brief."},
    ASKED,
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [call("weather", city="a", days=1, units=None), call("time", zone="b")],
    },
    FOUND,
    {**AGAIN[2], "content": "13"},
    TOLD,
]
THOUGHT = [
    ASKED,
    {**CALLED, "thinking": "Look it up."},
    FOUND,
    {**TOLD, "reasoning_content": "It does."},
    AGAIN[0],
    {**AGAIN[1], "reasoning": "A clock."},
    *AGAIN[2:],
]


def tokenizer() -> tokenizers.Tokenizer:
    """A tokenizer of characters."""
    made = word_tokenizer(WORDS, "[UNK]", special=SPECIAL)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("[\\s\\S]"), "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    return made


def theirs(template: str | dict[str, str]) -> PreTrainedTokenizerFast:
    """The tokenizer of `transformers` with a chat template, or several by their names."""
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), bos_token="<s>", eos_token="</s>", unk_token="[UNK]"
    )
    made.chat_template = template
    return made


def write_model(template: str | dict[str, str]) -> PreTrainedTokenizerFast:
    """Save a decoder as `mine`, with the tokenizer and the template of `transformers`."""
    spec = {"format": 1, "name": "letters", "builder": "decoder", "vocab": len(WORDS)}
    spec |= {"n_layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 16, "position": "rotary"}
    Path("mine").mkdir()
    zoo.save(zoo.build(spec, seed=0), "mine")
    made = theirs(template)
    made.save_pretrained("mine")
    return made


def read(end: str, *rows: object, recipe: str = RECIPE) -> list[Row]:
    """The training data of these rows, as training encodes it."""
    Path("data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Path("recipe.toml").write_text(recipe.replace("END", end))
    start = find_start(read_recipe("recipe.toml"), load_registry())
    splits = find_data(start.recipe, Path(), start.sides, find_chats(start))
    tokens = make_tokens(start, splits.train)
    assert isinstance(tokens, Tokens)
    objective = objective_of(start.recipe, tokens, ())
    found = encode_parts(splits, objective, start.recipe).train
    assert all(isinstance(row, Row) for row in found)
    return found  # type: ignore[return-value]


def expected(
    made: PreTrainedTokenizerFast,
    chat: Sequence[dict[str, Any]],
    tools: Any,
) -> tuple[list[int], list[int]]:
    """The ids of `transformers` up to the end of the last answer, and the labels: all that the
    assistant says."""
    encoded = made.apply_chat_template(
        list(chat), tools=tools, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, mask = encoded["input_ids"], encoded["assistant_masks"]
    n = len(mask) - mask[::-1].index(1)
    labels = [one if own else IGNORED for one, own in zip(ids, mask, strict=True)]
    assert 0 not in ids  # the tokenizer knows all characters
    return ids[:n], labels[:n]


def as_lists(row: Row) -> tuple[list[int], list[int]]:
    """The ids and the labels of a row."""
    return list(row.target), list(row.labels or ())


# --- what is learned ----------------------------------------------------------------------------

IN_ONE_TEXT = {
    "blocks": (BLOCKS, "<|im_end|>", CHAT),
    "two calls": (BLOCKS, "<|im_end|>", TWO_CALLS),
    "first user": (FIRST_USER, "<|eot|>", CHAT),
    "named": (NAMED, "<|im_end|>", CHAT),
}


@pytest.mark.parametrize(("template", "end", "chat"), IN_ONE_TEXT.values(), ids=IN_ONE_TEXT)
def test_calls_are_learned_as_answers_are(
    project: Path, template: Any, end: str, chat: list[dict[str, Any]]
) -> None:
    """With the tools as a list or as its JSON, and without any."""
    made = write_model(template)
    if template is FIRST_USER:  # the year is fixed, so that runs are repeatable
        made.chat_template = FIRST_USER.replace('strftime_now("%Y")', '"2025"')
    for tools in (TOOLS, json.dumps(TOOLS)):
        (row,) = read(end, {"messages": chat, "tools": tools})
        assert as_lists(row) == expected(made, chat, TOOLS)
    short = [ASKED, TOLD]
    for none in ({}, {"tools": None}, {"tools": " "}):
        (row,) = read(end, {"messages": short, **none})
        assert as_lists(row) == expected(made, short, None)
    for none in ({"tools": []}, {"tools": "[]"}):
        (row,) = read(end, {"messages": short, **none})
        assert as_lists(row) == expected(made, short, [])


def test_messages_are_read_once_for_all_answers(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(BLOCKS)
    checked: list[object] = []
    validate = chat_module._Message.model_validate

    def counted(message: object) -> Any:
        checked.append(message)
        return validate(message)

    monkeypatch.setattr(chat_module._Message, "model_validate", counted)
    read("<|im_end|>", {"messages": CHAT * 20, "tools": TOOLS})
    assert len(checked) == len(CHAT) * 20


def test_tools_that_move_make_a_text_for_each_question(project: Path) -> None:
    """The call and what is told of its result are in one text; the next question has the tools."""
    made = write_model(LAST_USER)
    first, second = read("</s>", {"messages": CHAT, "tools": TOOLS})
    assert as_lists(first) == expected(made, CHAT[:4], TOOLS)
    ids, labels = expected(made, CHAT, TOOLS)
    assert as_lists(second)[0] == ids
    before = len(expected(made, CHAT[:5], TOOLS)[0])
    assert as_lists(second)[1] == [IGNORED] * before + labels[before:]


def test_thoughts_before_calls_are_learned_with_them(project: Path) -> None:
    """Whatever their key is; those of the question before are dropped, as the template does."""
    made = write_model(THINKING)
    first, second = read("<|im_end|>", {"messages": THOUGHT, "tools": TOOLS})
    assert as_lists(first) == expected(made, THOUGHT[:4], TOOLS)
    texts = ["".join(WORDS[id_] for id_ in row.target) for row in (first, second)]
    assert [text.count("<think>") for text in texts] == [2, 1]
    assert "<think>Look it up.</think><call>" in texts[0]
    assert as_lists(second)[0] == expected(made, THOUGHT, TOOLS)[0]


def test_arguments_of_a_data_set_are_those_of_each_call(project: Path) -> None:
    """Arrow gives all calls the arguments of all tools, and all messages all keys."""
    made = write_model(BLOCKS)
    rows = datasets.Dataset.from_list([{"of": {"messages": CHAT, "tools": TOOLS}}] * 2)
    filled = rows[0]["of"]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert filled == {"city": "é", "days": 2, "zone": None}
    Path("rows").mkdir()
    rows.to_parquet("rows/train.parquet")
    told = RECIPE.replace('"jsonl"', '"datasets"\npath = "rows"').replace("data.jsonl", "train")
    fields = 'messages = "of.messages"\ntools = "of.tools"'
    (row,) = read("<|im_end|>", recipe=told.replace('messages = "messages"', fields))
    said = "".join(WORDS[id_] for id_ in row.target)
    assert said == "".join(WORDS[id_] for id_ in expected(made, CHAT, TOOLS)[0])


# --- what is run --------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [BLOCKS, NAMED, LAST_USER], ids=["blocks", "named", "last"])
def test_a_chat_with_tools_is_run_as_it_was_learned(
    project: Path, capsys: pytest.CaptureFixture[str], template: Any
) -> None:
    """In Python, in pieces and on the command line."""
    made = write_model(template)
    text = read_text(Path("mine"))
    for chat, tools in ((CHAT[:3], TOOLS), (CHAT[:1], TOOLS), (CHAT[:1], None), (CHAT[:1], [])):
        ids = made.apply_chat_template(
            chat, tools=tools, add_generation_prompt=True, return_dict=False
        )
        assert text.encode(text.write_chat(chat, tools=tools), special=False) == ids
    model = zoo.TextModel.load("mine")
    prompt = made.apply_chat_template(
        CHAT[:1], tools=TOOLS, add_generation_prompt=True, return_dict=False
    )
    (plain,) = zoo.generate(zoo.load("mine"), [prompt], max_new_tokens=5)
    (found,) = model.run([CHAT[:1]], tools=TOOLS, max_new_tokens=5)
    assert found["ids"] == list(plain.ids)
    assert "".join(model.stream(CHAT[:1], tools=TOOLS, max_new_tokens=5)) == found["text"]
    Path("tools.json").write_text(json.dumps(TOOLS))
    asked = ["mine", ASKED["content"], "--chat", "--tools", "tools.json", "-n", "5", "--json"]
    assert json.loads(said(capsys, *asked))["ids"] == found["ids"]


def test_older_checkpoints_name_their_templates_in_the_configuration(project: Path) -> None:
    made = write_model(NAMED)
    for path in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        Path("mine", path).unlink()
    named = [{"name": name, "template": template} for name, template in NAMED.items()]
    Path("mine/tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    text = read_text(Path("mine"))
    for tools in (TOOLS, None):
        assert text.write_chat(CHAT[:1], tools=tools) == made.apply_chat_template(
            CHAT[:1], tools=tools, add_generation_prompt=True, tokenize=False
        )


def test_the_template_for_tools_is_kept(project: Path) -> None:
    """In the folder of a model that is trained further."""
    write_model(NAMED)
    read("<|im_end|>", {"messages": CHAT, "tools": TOOLS})
    zoo.train("recipe.toml", output="calling")
    for path in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        assert Path("calling", path).read_bytes() == Path("mine", path).read_bytes()


# --- what is refused ----------------------------------------------------------------------------

FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no content": (
        {"messages": [{"role": "user"}, TOLD]},
        "data.jsonl:1:1: error: message 1 of the chat: `content` is missing",
    ),
    "neither content nor calls": (
        {"messages": [ASKED, {**CALLED, "tool_calls": []}]},
        "data.jsonl:1:1: error: message 2 of the chat: `content` is missing",
    ),
    "a table for tools": (
        {"messages": CHAT, "tools": TOOLS[0]},
        "data.jsonl:1:1: error: the tools of the chat must be an array, not a table",
    ),
    "names for tools": (
        {"messages": CHAT, "tools": [TOOLS[0], "time"]},
        "data.jsonl:1:1: error: tool 2 of the chat: must be a table, not the string `time`",
    ),
    "no JSON": (
        {"messages": CHAT, "tools": "weather"},
        "data.jsonl:1:1: error: the tools of the chat are a text, and no JSON",
    ),
    "JSON of a name": (
        {"messages": CHAT, "tools": '"weather"'},
        "data.jsonl:1:1: error: the tools of the chat must be an array, not the string",
    ),
    "what the template refuses": (
        {"messages": TWO_CALLS[1:], "tools": TOOLS},
        "does not accept these messages: one call at a time",
    ),
}


@pytest.mark.parametrize(("row", "told"), FAULTS.values(), ids=FAULTS)
def test_what_is_wrong_is_told_with_its_place(
    project: Path, refused: Refused, row: dict[str, Any], told: str
) -> None:
    write_model(FIRST_USER)
    Path("data.jsonl").write_text(f"{json.dumps(row)}\n")
    Path("recipe.toml").write_text(RECIPE.replace("END", "<|eot|>"))
    assert refused("validate", "recipe.toml").count(told) == 1


def test_tools_that_a_recipe_names_are_there(project: Path, refused: Refused) -> None:
    write_model(BLOCKS)
    recipe = RECIPE.replace("END", "<|im_end|>")
    Path("data.jsonl").write_text(json.dumps({"messages": CHAT, "tool": TOOLS}) + "\n")
    Path("recipe.toml").write_text(recipe.replace("[tokenizer]", 'tools = "tools"\n[tokenizer]'))
    assert "there is no field `tools`" in refused("validate", "recipe.toml")
    pairs = recipe.replace('messages = "messages"', 'target = "text"\ntools = "tools"')
    Path("recipe.toml").write_text(pairs)
    told = "recipe.toml:9:9: error: tools are called in chats, and no `messages` are named"
    assert told in refused("validate", "recipe.toml")


NO_TOOLS = {
    "[": "tools.json:1:2: error: not JSON",
    "null": "tools.json: error: the tools of the chat must be an array, not `None`",
    '[{"a": NaN}]': "tools.json: error: not JSON: NaN is no number",
    '[{"a": 1, "a": 2}]': "tools.json: error: not JSON: the key `a` is written twice",
}
"""Files of tools, and what is told of them."""


def test_tools_go_with_chats(project: Path, refused: Refused) -> None:
    write_model(BLOCKS)
    Path("tools.json").write_text(json.dumps([*TOOLS, 3]))
    assert "--tools goes with --chat" in refused("run", "mine", "a", "--tools", "tools.json")
    told = "tools.json: error: tool 3 of the chat: must be a table, not the integer `3`"
    assert told in refused("run", "mine", "a", "--chat", "--tools", "tools.json")
    for text, told in NO_TOOLS.items():
        Path("tools.json").write_text(text)
        assert told in refused("run", "mine", "a", "--chat", "--tools", "tools.json")
    model = zoo.TextModel.load("mine")
    with pytest.raises(zoo.ZooError, match="tools are called in chats, and this is a text"):
        model.run(["a"], tools=TOOLS)
    told = "tool 1 of the chat: `strict` must be plain data, as in JSON, not a set"
    with pytest.raises(zoo.ZooError, match=told):
        model.run([CHAT[:1]], tools=[{**TOOLS[0], "strict": {True}}])
