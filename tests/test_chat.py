"""Chats: messages become the ids that `transformers` makes of them, and a model answers them."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from random_values import add_noise
from transformers import PreTrainedTokenizerFast
from trials import Refused, said
from word_tokenizers import word_tokenizer

import zoo
from zoo.cli import run
from zoo.errors import InputError
from zoo.running.text import Text
from zoo.running.tokenized import read_text

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"]
ALPHABET = [chr(code) for code in range(32, 127)] + ["\n", "é"]
WORDS = ["[UNK]", *SPECIAL, *ALPHABET]

QUESTION = {"role": "user", "content": "a < b & c, été?"}
ANSWER = {"role": "assistant", "content": "yes"}
CHATS = {
    "one": [QUESTION],
    "system": [{"role": "system", "content": " Be brief. "}, QUESTION],
    "several": [QUESTION, ANSWER, QUESTION],
    "keys": [{**QUESTION, "name": "Ann", "tags": ["x", 1, None]}],
    "null": [{**QUESTION, "name": None, "tool_calls": None}],
    "reasoning": [QUESTION, {**ANSWER, "reasoning": "a"}, QUESTION],
    "thinking": [QUESTION, {**ANSWER, "thinking": "a", "reasoning": "b"}, QUESTION],
    "thoughts": [QUESTION, {**ANSWER, "thinking": "a", "reasoning_content": "b"}, QUESTION],
}

TEMPLATES = {
    "chatml": """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}""",
    "alternating": """{% if messages[0].role == 'system' %}
{% set system = messages[0].content | trim %}
{% set messages = messages[1:] %}
{% endif %}
{{ bos_token }}
{% for message in messages %}
    {% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate') }}
    {% endif %}
    {% if message.role == 'user' %}
[INST] {{ system ~ '. ' if loop.first and system is defined }}{{ message.content }} [/INST]
    {% else %}
{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
    {% endif %}
{% endfor %}""",
    "everything": """{{- bos_token -}}
{%- if tools is none and documents is none and not builtin_tools is defined %}none {% endif -%}
{%- set state = namespace(last=-1) -%}
Date: {{ strftime_now('%Y') }}
{% for message in messages -%}
    {%- if loop.index0 > 3 %}{% break %}{% endif -%}
    {%- if message.role == 'system' %}{% continue %}{% endif -%}
    {%- set state.last = loop.index0 -%}
    {{ message | tojson }} {{ message.content | tojson(indent=2) }} {{ pad_token }}
    {{- dict(message).get('name', 'nobody') }} {{ range(3) | list }}
{% endfor %}{{ state.last }}""",
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of characters that begins each text with `<s>`, as those of Llama do."""
    made = word_tokenizer(WORDS, "[UNK]", special=SPECIAL, single="<s> $A")
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("[\\s\\S]"), "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="[UNK]"
    )


def peers(tokenizer: PreTrainedTokenizerFast, template: str, chat: Any) -> list[int]:
    """The ids that `transformers` makes of a chat."""
    found = tokenizer.apply_chat_template(
        chat, chat_template=template, add_generation_prompt=True, return_dict=False
    )
    return list(found)


def saved(tokenizer: PreTrainedTokenizerFast, folder: Path, template: str) -> Path:
    """Save a tokenizer with a chat template, as `transformers` does."""
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    tokenizer.chat_template = None
    assert (folder / "chat_template.jinja").is_file()
    return folder


def encoded(text: Text, chat: Any) -> list[int]:
    """The ids that a model reads of a chat."""
    return text.encode(text.write_chat(chat), special=False)


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_becomes_the_ids_of_transformers(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, template: str, chat: str
) -> None:
    text = read_text(saved(tokenizer, tmp_path, TEMPLATES[template]))
    expected = peers(tokenizer, TEMPLATES[template], CHATS[chat])
    assert encoded(text, CHATS[chat]) == expected
    assert 0 not in expected  # the tokenizer knows all characters
    assert expected.count(WORDS.index("<s>")) == (template != "chatml")


def test_a_call_without_a_content_has_none(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """For a template, it is not the empty text, as it is not for that of `transformers`."""
    template = "{{ messages | tojson }}"
    chat = [QUESTION, {"role": "assistant", "tool_calls": [{"name": "x"}]}]
    text = read_text(saved(tokenizer, tmp_path, template))
    assert encoded(text, chat) == peers(tokenizer, template, chat)


def test_older_checkpoints_keep_the_template_in_the_configuration(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    template = TEMPLATES["alternating"]
    expected = peers(tokenizer, template, CHATS["several"])
    path = saved(tokenizer, tmp_path, template) / "tokenizer_config.json"
    path.write_text('{"chat_template": "x", "bos_token": "<s>", "eos_token": "</s>"}')
    assert encoded(read_text(tmp_path), CHATS["several"]) == expected  # the file has priority
    (tmp_path / "chat_template.jinja").unlink()
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
    for stated in (template, named):
        for bos in ("<s>", {"content": "<s>", "lstrip": False, "__type": "AddedToken"}):
            config = {"chat_template": stated, "bos_token": bos, "eos_token": "</s>"}
            path.write_text(json.dumps(config))
            assert encoded(read_text(tmp_path), CHATS["several"]) == expected
    path.write_text(json.dumps({"chat_template": template, "eos_token": "</s>"}))
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": "x"}')
    assert encoded(read_text(tmp_path), CHATS["several"]) == expected


@pytest.fixture
def model(tokenizer: PreTrainedTokenizerFast, project: Path) -> Callable[..., str]:
    """Makes a decoder of chats in the working directory; returns its folder."""

    def make(template: str | None = TEMPLATES["chatml"], **spec: Any) -> str:
        sizes = {"format": 1, "n_layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 16}
        spec = {"builder": "decoder", "vocab": len(WORDS), **spec}
        made = add_noise(zoo.build({**sizes, **spec, "name": "chatty"}), 0.5, seed=1)
        zoo.save(made, project / "chatty")
        if template is None:
            tokenizer.save_pretrained(project / "chatty")
        else:
            saved(tokenizer, project / "chatty", template)
        return "chatty"

    return make


def test_a_model_answers_a_chat(
    model: Callable[..., str],
    tokenizer: PreTrainedTokenizerFast,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = model()
    chats = [CHATS["one"], CHATS["system"]]
    ids = [peers(tokenizer, TEMPLATES["chatml"], chat) for chat in chats]
    alone, after = (found.ids for found in zoo.generate(zoo.load(folder), ids, max_new_tokens=9))
    assert alone != after
    texts = zoo.TextModel.load(folder)
    found = texts.run([*chats, QUESTION["content"]], max_new_tokens=9)
    assert [tuple(one["ids"]) for one in found[:2]] == [alone, after]
    assert found[2]["ids"] != found[0]["ids"]  # a text is no chat
    assert "".join(texts.stream(chats[1], max_new_tokens=9)) == found[1]["text"]

    def answer(*arguments: str) -> tuple[int, ...]:
        report = json.loads(said(capsys, folder, *arguments, "-n", "9", "--chat", "--json"))
        return tuple(report["ids"])

    question = QUESTION["content"]
    assert answer(question) == alone
    assert answer(question, "--system", CHATS["system"][0]["content"]) == after
    several = said(capsys, folder, question, question, "-n", "9", "--chat", "--json")
    assert [tuple(json.loads(line)["ids"]) for line in several.splitlines()] == [alone] * 2
    for as_one in (["-"], []):
        stdin = io.TextIOWrapper(io.BytesIO(f"{question}\n".encode()))
        monkeypatch.setattr(sys, "stdin", stdin)
        assert answer(*as_one) == alone
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert said(capsys, folder, question, "-n", "9", "--chat") == f"{found[0]['text']}\n"


def test_a_conversation_on_a_terminal(
    model: Callable[..., str],
    tokenizer: PreTrainedTokenizerFast,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each typed line is answered after all lines and answers before it."""
    folder = model()
    plain = zoo.load(folder)
    chat = list(CHATS["system"][:1])
    expected = []
    for line in ("one", "two?"):
        chat.append({"role": "user", "content": line})
        ids = peers(tokenizer, TEMPLATES["chatml"], chat)
        (found,) = zoo.generate(plain, [ids], max_new_tokens=5)
        expected.append(tokenizer.decode(found.ids, skip_special_tokens=True))
        chat.append({"role": "assistant", "content": expected[-1]})
    (alone,) = zoo.TextModel.load(folder).run([[chat[0], chat[3]]], max_new_tokens=5)
    assert alone["text"] != expected[1]
    for to_terminal in (True, False):
        stdin = io.TextIOWrapper(io.BytesIO(b"one\n\n  \ntwo?\n"))
        monkeypatch.setattr(stdin, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys.stdout, "isatty", lambda to=to_terminal: to)
        system = ["--system", chat[0]["content"]]
        assert run(["run", folder, "--chat", *system, "-n", "5"]) == 0
        out, err = capsys.readouterr()
        assert out == "".join(f"{text}\n" for text in expected)
        assert err == "> " * 5 + "\n"


BAD = {
    "the chat is empty": [],
    "message 1 of the chat: must be": ["hello"],
    "message 2 of the chat: `role` is missing": [QUESTION, {"content": "x"}],
    "message 1 of the chat: `content` must be a string, not the integer `3`": [
        {"role": "user", "content": 3}
    ],
    "message 1 of the chat: `place` must be": [{**QUESTION, "place": Path()}],
    "chat_template.jinja` does not accept these messages: roles must alternate": [
        QUESTION,
        QUESTION,
    ],
    "not a text that can be written in UTF-8": [{"role": "user", "content": "half \udcff"}],
}


@pytest.mark.parametrize("told", BAD)
def test_a_bad_chat(model: Callable[..., str], told: str) -> None:
    texts = zoo.TextModel.load(model(TEMPLATES["alternating"]))
    with pytest.raises(InputError, match="text 2") as caught:
        texts.run([CHATS["one"], BAD[told]])
    assert told in str(caught.value)
    with pytest.raises(InputError) as caught:
        list(texts.stream(BAD[told]))
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_file_that_cannot_be_read_is_not_taken_for_missing(
    model: Callable[..., str], refused: Refused, name: str
) -> None:
    path = Path(model(TEMPLATES["alternating"]), name)
    path.unlink(missing_ok=True)
    path.symlink_to("nowhere")
    told = refused("run", str(path.parent), "hello", "--chat")
    assert re.search(f"{name}: error: (this )?cannot be read: ", told)


def test_a_model_that_knows_no_chats(model: Callable[..., str], refused: Refused) -> None:
    folder = model(None)
    told = refused("run", folder, "hello", "--chat")
    assert "the model has no chat template" in told
    assert "chat_template.jinja" in told
    assert "tokenizer_config.json" in told
    Path(folder, "tokenizer.json").unlink()
    assert "so text is written as ids" in refused("run", folder, "hello", "--chat")


def test_options_of_chats(model: Callable[..., str], refused: Refused) -> None:
    folder = model(builder="encoder", head="mlm")
    assert "--system goes with --chat" in refused("run", folder, "hello", "--system", "x")
    assert "--chat: chatty generates no text" in refused("run", folder, "hello", "--chat")
    with pytest.raises(InputError, match="chatty takes texts, not chats"):
        zoo.TextModel.load(folder).run([CHATS["one"]])


def test_damaged_templates(model: Callable[..., str], refused: Refused) -> None:
    folder = model("one\n{% if %}\n")
    told = refused("run", folder, "hello", "--chat")
    assert "chat_template.jinja:2: error: the chat template is wrong" in told
    for deep in ("{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", "{% for x in y %}" * 99):
        (Path(folder) / "chat_template.jinja").write_text(deep + "{% endfor %}" * deep.count("for"))
        told = refused("run", folder, "hello", "--chat")
        assert "chat_template.jinja: error: the chat template is wrong" in told
    (Path(folder) / "chat_template.jinja").write_bytes(b"\xff")
    assert "this cannot be read" in refused("run", folder, "hello", "--chat")
    (Path(folder) / "chat_template.jinja").unlink()
    for content in ("{", "[]"):
        (Path(folder) / "tokenizer_config.json").write_text(content)
        assert "chatty/tokenizer_config.json:" in refused("run", folder, "hello")
    for content in ('{"chat_template": 3}', '{"chat_template": [{"name": "x"}]}'):
        (Path(folder) / "tokenizer_config.json").write_text(content)
        told = refused("run", folder, "hello", "--chat")
        assert "tokenizer_config.json: error: this cannot be read for the chat template" in told
        assert zoo.TextModel.load(folder).run(["hello"], max_new_tokens=1)  # no chat, no template
    (Path(folder) / "tokenizer_config.json").write_text('{"chat_template": "{% if %}"}')
    told = refused("run", folder, "hello", "--chat")
    assert "tokenizer_config.json: error: the chat template is wrong" in told
    (Path(folder) / "chat_template.json").write_text('{"chat_template": 3}')
    told = refused("run", folder, "hello", "--chat")
    assert "chat_template.json: error: `chat_template` must be a string" in told


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__globals__.x }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context.environment.from_string('x').render() }}",
    "{{ '{0.__class__}'.format(messages) ~ x.y }}",
    "{% include '/etc/hostname' %}",
    "{% import 'os' as os %}",
    "{{ messages | tojson(default=raise_exception) }}",
    "{{ messages | tojson(cls=namespace) }}",
    "{{ range(10 ** 9) | list }}",
    "{{ 'a' * 10 ** 15 }}",
    "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_template_cannot_leave_its_sandbox(
    model: Callable[..., str], template: str, refused: Refused
) -> None:
    told = refused("run", model(template), "hello", "--chat")
    assert "chat_template.jinja` does not accept these messages" in told
