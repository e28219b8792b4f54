"""Write a named template as Jinja text, which transformers and servers can render.

For the same messages, the Jinja text gives the same tokens as in training and, with `add_generation_prompt`,
the prompt before a reply. `apply_chat_template` and servers add no BOS to the rendered text. If the tokenizer
adds a BOS in training, the saved template therefore writes the BOS itself. A model's own template is changed
in the same way.
"""

from __future__ import annotations

from fastsft import _C

_REFUSAL = (
    "{{- raise_exception('this model was trained with user and assistant, and one system message in front; "
    "got ' ~ message['role']) -}}"
)
_VARIABLES = ("system", "text")


def jinja_form_of(name: str, native: _C.Tokenizer) -> str:
    """Return the Jinja text of the template `name` that gives the same ids as training with `native`."""
    chat = _C.find_chat_template(name)
    system = f"{chat.before_system}{chat.system}{chat.after_system}" if chat.system else ""
    begin = chat.before_user + system if chat.system_in_user else system + chat.before_user
    return jinja_form(name, native.adds_bos, native.named.bos >= 0, gap_after_bos(native, f"{begin}Hi"))


def jinja_form(name: str, adds_bos: bool, has_bos: bool, gap: str = "") -> str:
    """Return the Jinja text of the template `name`, one of `chat_templates()` or an alias.

    adds_bos: True if the tokenizer puts a BOS before a text. has_bos: True if the tokenizer has a BOS token.
    gap: text to write after the first BOS (`gap_after_bos`). ValueError if the name is unknown.
    """
    chat = _C.find_chat_template(name)
    in_front = adds_bos if chat.bos == _C.BosRule.TOKENIZER else has_bos
    trim = " | trim" if chat.strips else ""
    default = chat.system.strip() if chat.strips else chat.system
    own = "messages[0]['content']" + trim
    if default:
        own = f"({own}) or {_quoted(default)}"  # an empty system text is replaced by the default, too
    return "".join(
        (
            "{%- if messages and messages[0]['role'] == 'system' -%}",
            "{%- set system = " + own + " -%}{%- set turns = messages[1:] -%}",
            "{%- else -%}",
            "{%- set system = " + _quoted(default) + " -%}{%- set turns = messages -%}",
            "{%- endif -%}",
            _bos(gap) if in_front else "",
            "" if chat.system_in_user else _system(chat),
            "{%- set seen = namespace(user=false) -%}",
            "{%- for message in turns -%}",
            "{%- set text = message['content']" + trim + " -%}",
            "{%- if message['role'] == 'user' -%}",
            _user(chat, has_bos),
            "{%- set seen.user = true -%}",
            "{%- elif message['role'] == 'assistant' -%}",
            _assistant(chat),
            "{%- else -%}",
            _REFUSAL,
            "{%- endif -%}",
            "{%- endfor -%}",
            "{%- if add_generation_prompt -%}" + _written(_prompt(chat)) + "{%- endif -%}",
        )
    )


def _bos(gap: str) -> str:
    return f"{{{{- bos_token ~ {_quoted(gap)} -}}}}" if gap else "{{- bos_token -}}"


def _system(chat: _C.ChatTemplate) -> str:
    parts = _written(chat.before_system, "system", chat.after_system)
    return "{%- if system -%}" + parts + "{%- endif -%}"


def _user(chat: _C.ChatTemplate, has_bos: bool) -> str:
    each = chat.bos == _C.BosRule.EACH_TURN and has_bos
    again = "{%- if seen.user -%}{{- bos_token -}}{%- endif -%}" if each else ""
    if not chat.system_in_user:
        return again + _or_empty(chat, _written(chat.before_user, "text", chat.after_user), chat.empty_user)
    system = "{%- if not seen.user -%}" + _system(chat) + "{%- endif -%}"
    return again + _written(chat.before_user) + system + _written("text", chat.after_user)


def _assistant(chat: _C.ChatTemplate) -> str:
    end = f"{chat.before_stop}{chat.stop_token}{chat.after_stop}"
    return _or_empty(chat, _written(chat.before_assistant, "text", end), chat.empty_assistant)


def _or_empty(chat: _C.ChatTemplate, whole: str, empty: str) -> str:
    """Return Jinja text that writes `whole` or, for a message without text, `empty` (the role alone).

    This is FastChat's rule; other templates always write `whole`.
    """
    if not chat.has_fastchat_labels:
        return whole
    return "{%- if text -%}" + whole + "{%- else -%}" + _written(empty) + "{%- endif -%}"


def _prompt(chat: _C.ChatTemplate) -> str:
    """Return the text before a reply, without a trailing space that is learned with the reply."""
    lead = chat.before_assistant.encode()
    return lead[: len(lead) - chat.learned_lead].decode()


def _written(*parts: str) -> str:
    """Return a Jinja expression that writes the parts in order. A part is a variable's name or a text."""
    values = [part if part in _VARIABLES else _quoted(part) for part in parts if part]
    return "{{- " + " ~ ".join(values) + " -}}" if values else ""


def _quoted(text: str) -> str:
    """Return `text` as a Jinja string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    return f"'{escaped}'"


# The comment distinguishes a BOS that fastsft has added from a BOS that the template itself writes. Jinja
# trims the line break after a comment, as after a block.
_COMMENT = "{# in front, where the tokenizer put it in training #}\n"
_FRONT = "{{ bos_token }}" + _COMMENT
_SPACED_FRONT = "{{ bos_token ~ ' ' }}" + _COMMENT


def with_bos(source: str, gap: str = "") -> str:
    """Return the template `source` with a BOS before its text, followed by a space if `gap` is not empty."""
    return (_SPACED_FRONT if gap else _FRONT) + _bare(source)


def without_bos(source: str, adds_bos: bool) -> str:
    """Remove the BOS that `with_bos` has added, if the tokenizer also adds a BOS."""
    return _bare(source) if adds_bos else source


def gap_after_bos(native: _C.Tokenizer, text: str) -> str:
    """Return the text (" " or "") to write after a BOS to get the same ids as with the tokenizer's own BOS.

    A Llama tokenizer with legacy=False puts a space before a text, but not after a BOS inside the text.
    """
    if native.named.bos < 0:
        return ""
    bos, ids = native.token_text(native.named.bos), [native.named.bos, *native.encode(text)]
    is_same = native.encode(bos + text) == ids
    return " " if not is_same and native.encode(f"{bos} {text}") == ids else ""


def _bare(source: str) -> str:
    return source.removeprefix(_FRONT).removeprefix(_SPACED_FRONT)
