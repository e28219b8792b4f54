"""Reads axolotl's data sets: their files, their records' type, and a type's template."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from fastsft.arguments.imports import shared
from fastsft.arguments.imports.draft import Draft, is_off, number
from fastsft.arguments.imports.llamafactory_data import ROLES
from fastsft.arguments.imports.templates import axolotl_template, written

_CHAT = ("chat_template", "sharegpt", "messages")
_STANFORD = (
    "the text is Stanford's for records without an input, for the others it is another there; the line break "
    "after ### Response: is learned here, so that a prompt may end before it; replies end with "
    "the tokenizer's EOS, as there"
)
_READ = {
    "path", "data_files", "name", "split", "ds_type", "type", "field", "field_messages", "roles",
    "message_field_role", "message_field_content", "message_property_mappings", "chat_template",
    "roles_to_train", "train_on_eos", "train_on_eot", "message_field_training", "field_tools",
    "field_thinking", "field_system", "conversation", "revision", "trust_remote_code",
    "template_thinking_key",
}  # fmt: skip
# FastChat's names of templates that write the same text here
_FASTCHAT = (
    "airoboros_v3", "alpaca", "gemma", "llama-2", "llama-3", "mistral", "vicuna_v1.1", "zephyr",
)  # fmt: skip
# axolotl's own next to them, and the template here
_OLD_OWN = {"chatml": "chatml", "llama3": "llama-3"}
_OLD_BREAKS = "the line breaks around a reply's text were learned there, here they are context"
_BREAKING = ("chatml", "gemma", "llama-3", "zephyr")
_MARKS = ("train", "training", "trainable", "weight", "train_on_turn", "loss")


def data_sets(draft: Draft) -> None:
    """Read `datasets`, `test_datasets`, `val_set_size` and the template of all of them."""
    if "datasets" in draft.left and isinstance(draft.get("datasets"), list):
        _read(draft, "datasets", "data_path")
    elif "datasets" in draft.left and draft.get("datasets") is not None:
        raise ValueError(
            f"datasets: expected a list with a path and a type each, got {draft.get('datasets')!r:.60}; "
            "write - path: FILE, and type: chat_template below it"
        )
    if "test_datasets" in draft.left and isinstance(draft.get("test_datasets"), list):
        _read(draft, "test_datasets", "eval_data_path")
    size = draft.get("val_set_size")
    if "val_set_size" in draft.left:
        share = 0.0 if is_off(size) else number("val_set_size", size)
        if share:
            draft.carry(
                "val_set_size",
                {"eval_split": int(share) if share >= 1 else share},
                "other records are drawn",
            )
        else:
            draft.idle("val_set_size", "nothing is taken out for evaluation")


def described_files(draft: Draft) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the files of `datasets` and `test_datasets`, each with its entry."""
    for key in ("datasets", "test_datasets"):
        entries = draft.get(key)
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict):
                with contextlib.suppress(ValueError):
                    yield from ((path, dict(entry)) for path in _paths(draft, entry))


def _read(draft: Draft, key: str, field: str) -> None:
    entries = [entry for entry in draft.given[key] if isinstance(entry, dict)]  # type: ignore[attr-defined]
    paths: list[str] = []
    roles: dict[str, str] = {}
    problems: list[str] = []
    for entry in entries:
        name = str(entry.get("path"))
        try:
            found = _paths(draft, entry)
        except ValueError as error:
            found, problems = [], [*problems, f"{name}: {error}"]
        paths += found
        problems += [f"{name}: {text}" for text in _fields(entry, roles)]
    values: dict[str, object] = {field: paths[0] if len(paths) == 1 else paths} if paths else {}
    if roles:
        values["role_map"] = ",".join(f"{name}={role}" for name, role in roles.items())
    problems += _template(draft, entries) if field == "data_path" else []
    if problems:
        draft.lose(key, "; ".join(problems), values)
    else:
        draft.carry(key, values)


def _paths(draft: Draft, entry: Mapping[str, Any]) -> list[str]:
    """Return the files of a data set. ValueError if it has none that can be read."""
    path, files = str(entry.get("path") or ""), entry.get("data_files")
    if not path:
        raise ValueError("no path; name the file or data set as path:")
    if (found := draft.found(path)) is not None:
        listed = files if isinstance(files, list) else [files] if files else []
        return [f"{found}/{file}" for file in listed] or [found]
    if path in ("json", "csv", "parquet", "arrow") and files:
        return [str(file) for file in (files if isinstance(files, list) else [files])]
    if shared.is_hub_name(path):
        revision = f"@{entry['revision']}" if entry.get("revision") else ""
        return shared.hub_data(f"{path}{revision}", entry.get("name"), entry.get("split"), files)
    return [path]


def _fields(entry: Mapping[str, Any], roles: dict[str, str]) -> list[str]:
    """Return what fastsft reads otherwise of a data set; add unknown roles to `roles`."""
    problems = [f"{key} is not carried" for key in entry if key not in _READ and not is_off(entry[key])]
    mapping = entry.get("message_property_mappings") or {}
    names = (
        mapping.get("role") or entry.get("message_field_role") or "role",
        mapping.get("content") or entry.get("message_field_content") or "content",
    )
    if names not in (("from", "value"), ("role", "content")):
        problems.append(f"messages have {names[0]} and {names[1]}: rename them to role and content")
    for role, others in (entry.get("roles") or {}).items():
        for name in others if isinstance(others, list) else [others]:
            if name not in ROLES.get(role, ()):
                roles[name] = role
    trained = entry.get("roles_to_train")
    if trained is not None and not all(role in ROLES["assistant"] for role in trained):
        problems.append(f"roles_to_train: replies alone are learned, not {', '.join(map(str, trained))}")
    problems += _own_fields(entry.get("type"))
    for name in ("train_on_eos", "train_on_eot"):
        if entry.get(name) not in (None, "turn"):
            problems.append(f"{name}: each reply is learned with its stop token")
    mark = entry.get("message_field_training")
    if mark is not None and mark not in _MARKS:
        problems.append(f"message_field_training: rename the field {mark} to train")
    if entry.get("field_system") not in (None, "system"):
        problems.append(f"field_system: rename {entry['field_system']} to system")
    return problems


def _own_fields(kind: object) -> Iterator[str]:
    """Yield what to rename where the type names the fields of its records."""
    if isinstance(kind, dict):
        for name in ("instruction", "input", "output", "system"):
            field = kind.get(f"field_{name}")
            if field not in (None, "", name):
                yield f"rename the field {field} to {name}"


def _template(draft: Draft, entries: list[dict[str, Any]]) -> list[str]:
    """Write the types' template; return what differs."""
    kinds = {_kind(entry) for entry in entries}
    inside = {str(entry["chat_template"]) for entry in entries if entry.get("chat_template")}
    if kinds <= {"chat"}:
        if len(inside) == 1 and "chat_template" not in draft.given:
            draft.given["chat_template"] = draft.left["chat_template"] = inside.pop()
        old = [entry for entry in entries if str(entry.get("type")).startswith("sharegpt")]
        if old:
            return _of_sharegpt(draft, old)
        if draft.get("chat_template") is not None:
            axolotl_template(draft, "chat_template")
        else:
            draft.left.pop("chat_template", None)
            draft.default("mask_policy", "spans")
            draft.default("template", "model", "chat_template")
        return ["data sets with templates of their own: one is written"] if len(inside) > 1 else []
    if "chat_template" in draft.left:
        draft.idle("chat_template", "records of these types are written without it")
    if kinds == {"stanford"}:
        draft.values |= written("alpaca_stanford")
        return [f"template: alpaca_stanford is written; {_STANFORD}"]
    if kinds == {"text"}:
        draft.values |= {"mask_policy": "spans", "data_format": "text"}
        others = [entry["field"] for entry in entries if entry.get("field") not in (None, "text")]
        return [f"rename the field {field} to text" for field in others]
    draft.values |= written("model")
    names = ", ".join(str(entry.get("type")) for entry in entries)
    return [f"type {names}: template: model is written, with another text; one type of records a run"]


def _of_sharegpt(draft: Draft, entries: list[dict[str, Any]]) -> list[str]:
    """Write the template of `type: sharegpt`, which releases before 0.5 had; return what differs.

    They took it by name from FastChat. `chat_template` was the name if `conversation` was not given.
    """
    usual = draft.get("chat_template")
    given = [entry.get("conversation") for entry in entries]
    names = sorted({str(name or usual) for name in given if name or usual})
    if "chat_template" in draft.left:
        is_name = usual is not None and not all(given)
        use = "it is the conversation of type sharegpt" if is_name else "conversation names the template"
        draft.idle("chat_template", use)
    if not names:
        draft.default("mask_policy", "spans")
        draft.default("template", "vicuna_v1.1", "that of type sharegpt without conversation, before 0.5")
        return []
    problems = ["data sets with templates of their own: one is written"] if len(names) > 1 else []
    return problems + _of_conversation(draft, names[0])


def _of_conversation(draft: Draft, name: str) -> list[str]:
    """Write the template of a conversation's name in axolotl before 0.5; return what differs."""
    template = _OLD_OWN.get(name, name)
    if template not in (*_FASTCHAT, *_OLD_OWN.values()):
        draft.values |= written("model")
        known = ", ".join([*_FASTCHAT, *_OLD_OWN])
        return [f"conversation: {name} is none of {known}; template: model is written"]
    draft.values |= written(template)
    if name in _OLD_OWN:
        if name == draft.get("chat_template") and draft.is_on("default_system_message"):
            draft.carry("default_system_message", {"default_system": draft.get("default_system_message")})
        else:
            draft.default("default_system", "You are a helpful assistant.", f"of the conversation {name}")
    return [_OLD_BREAKS] if template in _BREAKING else []


def _kind(entry: Mapping[str, Any]) -> str:
    kind = entry.get("type")
    if not isinstance(kind, str):
        return "other" if kind is not None else "chat"
    first = kind.partition(":")[0].partition(".")[0]
    if first in _CHAT:
        return "chat"
    return {"alpaca": "stanford", "completion": "text", "pretrain": "text"}.get(kind, "other")
