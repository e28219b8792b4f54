"""--engine auto: native where it computes every setting, else transformers' own forward, with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fastsft.arguments import LoraArguments
from fastsft.cli import main as cli
from fastsft.lora.attach import open_model as open_with_adapters
from fastsft.model.context_length import check_switch_length, extend_positions, switch_length
from fastsft.model.engine_choice import as_model, open_model
from fastsft.model.generation import ChatModel
from fastsft.runtime.hub_models import DEFAULT_MODEL

SIZES = {
    "vocab_size": 32000, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
# transformers 4.57 and 5 differ in what they make of the positions among these.
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [8.0] * 4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def config_in(folder: Path, model_type: str = "llama", **changes: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **SIZES, **changes}))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"rope_scaling": LONGROPE},
            "longrope with original_max_position_embeddings of its own, which the nat",
        ),
        ({"hidden_act": "gelu"}, "hidden_act gelu, the native engine has silu"),
        ({"attention_dropout": 0.1}, "attention_dropout 0.1, the native engine has no dropout"),
        ({"model_type": "mistral", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "olmo2"}, "olmo2 has no native engine"),
    ],
)
def test_settings_that_native_lacks(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    model: Any = open_model(config_in(tmp_path / "model", **changes))
    assert model.engine_kind == "generic" and reason in model.engine_words
    assert open_model(config_in(tmp_path / "plain")).engine_kind == "native"


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "banana", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": -1.0}},
        {"rope_scaling": {"type": "dynamic"}},
        {"rope_scaling": LONGROPE, "num_attention_heads": 0},
        {"hidden_act": "banana"},
    ],
)
def test_what_is_wrong_anywhere_stays_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    model = open_model(config_in(tmp_path / "model", **changes))
    assert model.engine_kind == "native"
    with pytest.raises(ValueError, match=r"config\.json"):
        model.parameter_shapes()


def test_native_alone_refuses(tmp_path: Path) -> None:
    own = config_in(tmp_path / "own", rope_scaling=LONGROPE)
    with pytest.raises(ValueError, match=r"expected the same value at the top of config\.json"):
        open_model(own, engine="native").parameter_shapes()
    opt = config_in(tmp_path / "opt", "opt")
    with pytest.raises(ValueError, match="--engine auto trains it by transformers"):
        open_model(opt, engine="native")
    assert open_with_adapters(opt, LoraArguments(lora=True), None, 0).engine_kind == "generic"
    with pytest.raises(ValueError, match="--engine auto trains it by transformers"):
        open_with_adapters(opt, LoraArguments(lora=True), None, 0, "native")


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 8}


def test_adapters_of_experts_are_the_generic_engines(tmp_path: Path) -> None:
    directory = config_in(tmp_path / "model", "qwen3_moe", **EXPERTS)

    def opened(*targets: str, engine: str = "auto", **flags: Any) -> Any:
        lora = LoraArguments(lora=True, lora_dropout=0.0, lora_target_modules=[*targets], **flags)
        return open_with_adapters(directory, lora, None, 0, engine)

    for targets in (["q_proj", "v_proj"], ["o_proj", "lm_head"], [".*self_attn.*_proj"]):
        assert opened(*targets).engine_kind == opened(*targets, engine="native").engine_kind == "native"
    for targets in (["all-linear"], ["q_proj", "up_proj"], ["gate"], ["q_proj", "gate_up_proj"]):
        adapted = opened(*targets)
        assert adapted.engine_kind == "generic"
        assert "adapters of experts of qwen3_moe" in adapted.engine_words
        with pytest.raises(ValueError, match=r"no adapters for experts and routers of qwen3_moe; name att"):
            opened(*targets, engine="native")
    assert opened("q_proj", lora_modules_to_save=["norm"]).engine_kind == "native"
    with pytest.raises(ValueError, match="lora_modules_to_save: expected none with the generic engine"):
        opened("q_proj", lora_modules_to_save=["gate"])
    with pytest.raises(ValueError, match="of a mixture, name attention alone"):
        opened("all-linear", q_lora=True)


def test_a_mixture_without_room_is_offered_adapters_of_attention(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = {"num_experts": 64, "moe_intermediate_size": 2048, "hidden_size": 1024}
    directory = config_in(tmp_path / "model", "qwen3_moe", **{**EXPERTS, **large})
    command = ["plan", "--model", directory, "--memory", "8GiB"]
    assert cli.main(command) != 0
    told = "".join(capsys.readouterr())
    flags = "--lora True --lora_r 16 --lora_target_modules q_proj k_proj v_proj o_proj"
    assert flags in told.partition("what would fit")[2]
    assert cli.main([*command, *flags.split()]) == 0


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step 2, layers without experts"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"mlp_only_layers [0], layers without experts"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise 0.1, noise before the routers"),
    ],
)
def test_mixtures_that_native_lacks(
    model_type: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    own = EXPERTS if model_type == "qwen3_moe" else {"num_local_experts": 4}
    directory = config_in(tmp_path / "model", model_type, **own, **changes)
    model: Any = open_model(directory)
    assert model.engine_kind == "generic" and reason in model.engine_words
    with pytest.raises(ValueError, match="this model family is built for"):
        open_model(directory, engine="native").parameter_shapes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 5}, r"\"num_experts_per_tok\" is 5, expected at most 4 of 4 experts"),
        ({"num_experts": 5000}, "5000 experts; the native engine has at most 1024"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
    ],
)
def test_numbers_of_experts_are_checked(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    directory = config_in(tmp_path / "model", "qwen3_moe", **{**EXPERTS, **changes})
    with pytest.raises(ValueError, match=message):
        open_model(directory, engine="native").parameter_shapes()


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("t5", {}, "neither native .* nor a causal language model of transformers"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, r"\(gptq\): its weights are quantised"),
        (
            "gemma3",
            {"vision_config": {"hidden_size": 16}},
            r'"gemma3" has a part that is not for text \(vision_con',
        ),
        ("bart", {"is_encoder_decoder": True}, '"bart" is an encoder-decoder'),
        ("t5", {"is_encoder_decoder": True}, '"t5" is an encoder-decoder'),
        ("opt", {"auto_map": {}, "quantization_config": {"quant_method": "awq"}}, r"\(awq\)"),
    ],
)
def test_models_that_no_engine_trains(
    model_type: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        open_model(config_in(tmp_path / "model", model_type, **changes))


def test_a_given_model(tmp_path: Path) -> None:
    """Of a kind of scaling that the native engine reads, it is native."""
    kinds = {}
    for name, settings in {"own": LONGROPE, "yarn": YARN}.items():
        config = AutoConfig.for_model("llama", **SIZES, rope_scaling=settings)
        kinds[name] = as_model(AutoModelForCausalLM.from_config(config))
    assert kinds["own"].engine_kind == "generic" and "longrope" in kinds["own"].engine_words
    assert kinds["yarn"].engine_kind == "native"


def test_the_default_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import errors

    def unreachable(*_: Any, **__: Any) -> str:
        raise errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(ValueError, match=r"facebook/opt-125m: .*was not reached.*FastChat's default"):
        open_model(DEFAULT_MODEL)


def test_a_model_of_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """config.json first; pickled weights where there are no safetensors."""
    config_in(tmp_path, "opt", ffn_dim=24, word_embed_proj_dim=16)
    (tmp_path / "pytorch_model.bin").touch()
    asked: list[list[str]] = []

    def snapshot(name: str, *, allow_patterns: list[str], **_: Any) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert open_model("someone/opt").engine_kind == "generic"
    assert asked[0] == ["config.json"] and "*.safetensors" in asked[1] and asked[2] == ["*.bin"]
    config_in(tmp_path, "t5")
    asked.clear()
    with pytest.raises(ValueError, match="t5"):
        open_model("someone/t5")
    assert asked == [["config.json"]]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With tied weights, and the tokenizer of Llama."""
    from recorded_models import write_recorded

    return write_recorded("gpt2", tmp_path_factory.mktemp("gpt2") / "model")


def test_commands(gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = AutoModelForCausalLM.from_pretrained(gpt2).state_dict()
    assert cli.main(["plan", "--model", str(gpt2), "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    count = sum(value.numel() for name, value in expected.items() if name != "lm_head.weight")
    assert 4 * count <= parts["parameters"] < 4 * count + 8192  # units are padded
    assert cli.main(["verify", str(gpt2)]) == 0
    assert f"gpt2 (generic engine), {count:,} parameters" in capsys.readouterr().out
    assert cli.main(["convert", str(gpt2), str(tmp_path / "half"), "--dtype", "bfloat16"]) == 0
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(value, expected[name].bfloat16()) for name, value in made.items())


def test_a_reply_is_that_of_transformers(gpt2: Path) -> None:
    chat = ChatModel(gpt2)
    messages = [{"role": "user", "content": "Who are you?"}]
    chat.reply("Another question, whose cache is given up.", max_new_tokens=2)
    said = "".join(chat.stream(messages, max_new_tokens=12))
    ids = chat.prompts.ids(messages)
    model = AutoModelForCausalLM.from_pretrained(gpt2)
    theirs = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :].tolist()
    assert chat.engine_kind == "generic" and chat.max_positions == 512
    assert said == chat.tokenizer.decode([token for token in theirs if token != 2]).lstrip()


def test_positions_of_a_table_are_not_called_stretched(tmp_path: Path) -> None:
    opt = open_model(config_in(tmp_path / "opt", "opt", ffn_dim=24, word_embed_proj_dim=16))
    assert "cannot be stretched" in str(extend_positions(opt.config, 100, in_table=opt.positions_in_table()))
    assert "rope_scaling" not in opt.config
    assert not open_model(config_in(tmp_path / "gemma", "gemma", head_dim=8)).positions_in_table()


def test_frequencies_that_depend_on_the_width_of_a_batch() -> None:
    """With shorter and longer rows in one batch transformers computes the shorter ones otherwise."""
    settings = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [8.0] * 4, "factor": 2.0}
    settings["original_max_position_embeddings"] = 16
    config = AutoConfig.for_model("llama", **SIZES, rope_scaling=settings)
    config.original_max_position_embeddings = 16
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.arange(5, 37)[None]
    wide, narrow = model(input_ids=ids).logits[:, :16], model(input_ids=ids[:, :16]).logits
    assert not torch.allclose(wide, narrow, atol=1e-4)
    check_switch_length(switch_length(model), 16)
    with pytest.raises(ValueError, match="use --model_max_length 16"):
        check_switch_length(switch_length(model), 17)
    assert switch_length(AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES))) is None


def test_a_key_that_transformers_does_not_find_is_named_as_such(tmp_path: Path) -> None:
    folder = config_in(
        tmp_path / "opt", "opt", ffn_dim=24, word_embed_proj_dim=16, activation_function="nope"
    )
    with pytest.raises(ValueError, match="makes no causal language model of it: KeyError: 'nope'"):
        open_model(folder).parameter_shapes()
