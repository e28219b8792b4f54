"""config.json and generation_config.json as transformers' Trainer saves them, with FastChat's edits."""

import json
from types import SimpleNamespace

import pytest

from fastsft.model import config as model_config
from fastsft.model.context_length import extend_positions
from fastsft.model.model_config import ModelConfig
from fastsft.model.stored_weights import source_dtype

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "model_type": "llama",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 32,
}


def tokens(eos=2, bos=1, pad=0):
    return SimpleNamespace(eos_token_id=eos, bos_token_id=bos, pad_token_id=pad)


def saved_by_transformers(tmp_path, config, generation, tokenizer):
    """The files of a real model after transformers' own alignment of special tokens."""
    import transformers
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in config.items() if k != "torch_dtype"}))
    if generation is not None:
        model.generation_config = transformers.GenerationConfig(**generation)
    if hasattr(transformers.Trainer, "_align_special_tokens"):
        transformers.Trainer._align_special_tokens(SimpleNamespace(processing_class=tokenizer, model=model))
    else:
        transformers.trainer_utils.align_special_tokens(model, tokenizer)
    model.save_pretrained(tmp_path)
    return [json.loads((tmp_path / name).read_text()) for name in ("config.json", "generation_config.json")]


def once(ids):
    """A list without what is in it twice, as transformers 4 writes some."""
    return list(dict.fromkeys(ids)) if isinstance(ids, list) else ids


TOKEN_CASES = [
    tokens(),
    tokens(eos=5),
    tokens(pad=None),
    tokens(bos=None),
    tokens(eos=7, bos=8, pad=9),
]


@pytest.mark.parametrize(
    "generation",
    [None, {"eos_token_id": 2, "bos_token_id": 1}, {"eos_token_id": [2, 5]}, {"top_k": 7, "do_sample": True}],
)
@pytest.mark.parametrize(
    "tokenizer", TOKEN_CASES, ids=lambda t: f"{t.eos_token_id}-{t.bos_token_id}-{t.pad_token_id}"
)
def test_special_tokens_as_the_trainer(tmp_path, generation, tokenizer):
    their_config, their_generation = saved_by_transformers(tmp_path, LLAMA, generation, tokenizer)
    config = model_config.config_to_save(LLAMA, tokenizer, "float32")
    ours = model_config.generation_config_to_save(generation, LLAMA, tokenizer)
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        if getattr(tokenizer, name) is None:  # transformers 5.24 leaves these, too; 4.57 deletes them
            assert config.get(name) == LLAMA.get(name), name
            before = (
                {"bos_token_id": 1} if generation is None else generation
            )  # without a file: config.json's
            assert ours.get(name) == before.get(name), name
            continue
        assert config.get(name) == their_config.get(name), name
        theirs = their_generation.get(name)
        assert ours.get(name) == once([theirs] if name == "eos_token_id" and type(theirs) is int else theirs)
    assert ours.get("_from_model_config") == their_generation.get("_from_model_config")
    assert ours.get("top_k") == their_generation.get("top_k")


@pytest.mark.parametrize("name", ["eos_token_id", "bos_token_id", "pad_token_id"])
@pytest.mark.parametrize("known", [7, [7, 8], None])
def test_a_token_that_the_tokenizer_lacks_deletes_nothing(name, known):
    """config.json of Qwen and cwm names tokens that their tokenizers do not."""
    without = SimpleNamespace(**{**vars(tokens()), name: None})
    source = {**LLAMA, name: known}
    assert model_config.config_to_save(source, without, "float32")[name] == known
    generation = model_config.generation_config_to_save({name: known, "top_k": 3}, source, without)
    shown = [known] if name == "eos_token_id" and known == 7 else known
    assert generation.get(name) == shown


def test_ids_of_a_text_configuration_are_those_of_the_tokenizer():
    """As transformers 5.24 aligns them, there; a token that the tokenizer lacks changes nothing."""
    source = {"model_type": "gemma3", "text_config": {"eos_token_id": 2, "bos_token_id": 1, "hidden_size": 8}}
    saved = model_config.config_to_save(source, tokens(eos=7, bos=None), "float32")
    assert saved["text_config"] == {"eos_token_id": 7, "bos_token_id": 1, "hidden_size": 8}
    assert source["text_config"]["eos_token_id"] == 2  # the caller's is not touched


def test_stop_tokens_of_a_list_stay():
    """As by transformers 5.24; 4.57 wrote the tokenizer's alone."""
    source = {**LLAMA, "eos_token_id": [3, 4]}
    assert model_config.config_to_save(source, tokens(eos=2), "float32")["eos_token_id"] == [2, 3, 4]
    assert model_config.config_to_save(source, tokens(eos=4), "float32")["eos_token_id"] == [3, 4]


def test_config_of_the_source_is_kept_and_edited():
    source = {
        **LLAMA,
        "_name_or_path": "/somewhere",
        "use_cache": True,
        "made_up_key": [1],
        "rope_scaling": {"type": "linear", "factor": 4.0},
    }
    saved = model_config.config_to_save(source, tokens(), "bfloat16")
    assert saved == {
        **{k: v for k, v in source.items() if k != "_name_or_path"},
        "torch_dtype": "bfloat16",
        "pad_token_id": 0,
    }
    assert source["torch_dtype"] == "float16"  # the caller's configuration is not touched


def test_dtype_key_of_the_source_is_kept():
    saved = model_config.config_to_save({"dtype": "float32", "model_type": "qwen2"}, None, "bfloat16")
    assert saved == {
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
    }


def test_generation_settings_move_out_of_the_config():
    source = {**LLAMA, "temperature": 0.7, "do_sample": True, "top_p": 1.0}
    saved = model_config.config_to_save(source, tokens(), "float32")
    assert "temperature" not in saved and "do_sample" not in saved
    with pytest.warns(UserWarning, match="do_sample.*temperature"):
        generation = model_config.generation_config_to_save(None, source, tokens())
    assert generation["temperature"] == 0.7 and generation["do_sample"] is True


def test_contradictions_warn_and_are_copied():
    """Llama-2's own file: transformers raises on save, a finished run must not."""
    source = {"temperature": 0.9, "top_p": 0.6, "eos_token_id": 2}
    with pytest.warns(UserWarning, match=r"\['temperature', 'top_p'\].*do_sample"):
        saved = model_config.generation_config_to_save(source, LLAMA, tokens())
    assert saved["temperature"] == 0.9 and saved["top_p"] == 0.6


@pytest.mark.parametrize("content", [b"", b'{"eos_token_id": 2,', b"[1]", b"null", b'"\xff"'])
def test_a_broken_generation_config_warns_and_counts_as_absent(tmp_path, content):
    path = tmp_path / "generation_config.json"
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=rf"^{path}: expected a JSON object \(.+\); not copied"):
        assert model_config.read_generation_config(tmp_path) is None
    path.unlink()
    assert model_config.read_generation_config(tmp_path) is None


def test_text_is_what_transformers_writes():
    assert (
        model_config.json_text({"b": [1, 2], "a": "ä"})
        == '{\n  "a": "\\u00e4",\n  "b": [\n    1,\n    2\n  ]\n}\n'
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({}, "float32"),
        ({"torch_dtype": "int8"}, "float32"),
    ],
)
def test_type_of_pickled_weights_is_the_configs(tmp_path, config, expected):
    assert source_dtype(tmp_path, config) == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_type_of_weights_is_the_files(tmp_path, dtype):
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2, dtype=getattr(torch, dtype))}, tmp_path / "model.safetensors")
    assert source_dtype(tmp_path, {"torch_dtype": "float64"}) == dtype


def test_positions_of_layers_with_rotations_of_their_own_are_stretched_where_all_tokens_are_seen():
    """transformers 5 has a rotation by kind of layer; transformers 4 scaled Gemma 3's global one alone."""
    plain = {"rope_type": "default", "rope_theta": 1e4}
    both = {"full_attention": plain, "sliding_attention": plain}
    config = ModelConfig({"max_position_embeddings": 64, "rope_parameters": both})
    told = extend_positions(config, 130)
    assert config["rope_parameters"] == {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
        "sliding_attention": plain,
    }
    assert "stretched, as FastChat does" in told


@pytest.mark.parametrize("positions", [0, -1])
def test_no_positions_are_refused(positions: int) -> None:
    with pytest.raises(
        ValueError, match=f"max_position_embeddings: expected at least 1, got {positions}; write"
    ):
        extend_positions(ModelConfig({"max_position_embeddings": positions}), 130)
