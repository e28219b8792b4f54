"""Files of torch.save by strangers: read as torch reads them, or refused before anything of them runs."""

from __future__ import annotations

import importlib.util
import io
import multiprocessing
import os
import pickle
import resource
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as sharded_checkpoint

from fastsft.checkpoint.external.tensor_files import ShardedFiles
from fastsft.checkpoint.external.transformers_checkpoint import load_plain
from fastsft.model.weights import pickled_tensors
from fastsft.runtime.torch_archive import read_archive
from fastsft.weight_sync.verl_pt import read_shard

TENSORS = {
    "float8": torch.zeros(2, dtype=torch.float8_e4m3fn),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "bfloat16": torch.arange(2, dtype=torch.bfloat16),
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "uint16": torch.arange(2).to(torch.uint16),
    "empty": torch.empty(0, 4),
    "scalar": torch.tensor(3),
    "tail": torch.arange(10)[5:],
    "complex": torch.ones(2, dtype=torch.complex64),
    "bool": torch.tensor([True, False]),
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_are_those_of_torch(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "x.bin"
    torch.save(TENSORS, path, pickle_protocol=protocol)
    expected, found = torch.load(path, weights_only=False), read_archive(path)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].stride() == tensor.stride(), name
        assert torch.equal(found[name].float(), tensor.float()) or tensor.is_complex(), name
    assert torch.equal(found["complex"], expected["complex"])


@pytest.mark.parametrize("optimizer", [
    torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adafactor, torch.optim.NAdam,
    torch.optim.Adamax, torch.optim.RMSprop,
])  # fmt: skip
def test_states_of_optimizers_are_those_of_torch(tmp_path: Path, optimizer: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5))
    made = optimizer(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    made.step()
    torch.save(made.state_dict(), tmp_path / "x.pt")
    expected, found = torch.load(tmp_path / "x.pt", weights_only=True), read_archive(tmp_path / "x.pt")
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for number, entry in expected["state"].items():
        for key, value in entry.items():
            assert torch.equal(found["state"][number][key], torch.as_tensor(value)), (number, key)


def test_attributes_of_a_tensor_are_left_out(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.is_flat = True  # type: ignore[attr-defined]
    torch.save({"a": parameter}, tmp_path / "x.bin")
    assert torch.equal(read_archive(tmp_path / "x.bin")["a"], torch.ones(3))


@pytest.mark.parametrize("content", [
    {"milestones": __import__("collections").Counter({3: 1, 5: 2}), "last_epoch": 2}, {None: 1},
    {"expanded": torch.zeros(1).expand(10)},
])  # fmt: skip
def test_states_of_schedules_and_expanded_tensors(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "x.pt")
    found = read_archive(tmp_path / "x.pt")
    assert found.keys() == content.keys()
    assert all(torch.equal(torch.as_tensor(found[key]), torch.as_tensor(value)) if key == "expanded"
               else found[key] == value for key, value in content.items())  # fmt: skip


def test_a_conjugated_view_is_refused(tmp_path: Path) -> None:
    """Its storage holds other values."""
    torch.save({"a": torch.tensor([1 + 2j]).conj()}, tmp_path / "x.bin")
    with pytest.raises(ValueError, match="conjugated or negated"):
        read_archive(tmp_path / "x.bin")


def test_chunks_that_overlap_are_refused(tmp_path: Path) -> None:
    """Else a part of the tensor would be memory that nobody has written."""
    sharded_checkpoint.save({"a": torch.arange(4.0)}, checkpoint_id=tmp_path, no_dist=True)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    stored = metadata.state_dict_metadata["a"]
    kind, index = type(stored.chunks[0]), next(iter(metadata.storage_data))
    info = metadata.storage_data.pop(index)
    torch.save(torch.zeros(2), tmp_path / "two")
    content = (tmp_path / "two").read_bytes()
    (tmp_path / info.relative_path).write_bytes(content)
    info.offset, info.length = 0, len(content)
    stored.chunks[:] = [kind(torch.Size([begin]), torch.Size([2])) for begin in (0, 1)]
    for begin in (0, 1):
        metadata.storage_data[type(index)("a", torch.Size([begin]))] = info
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(ValueError, match="its chunks overlap"):
        ShardedFiles(tmp_path).tensor("a")


def test_what_is_written_into_a_tensor_stays_in_memory(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(4)}, tmp_path / "x.bin")
    before = (tmp_path / "x.bin").read_bytes()
    read_archive(tmp_path / "x.bin")["a"].fill_(7)
    assert (tmp_path / "x.bin").read_bytes() == before


def archive(path: Path, data: bytes, storages: dict[str, bytes] | None = None, **more: Any) -> None:
    """Write an archive as torch does, with `data` as its pickle."""
    with zipfile.ZipFile(path, "w", more.get("compression", zipfile.ZIP_STORED)) as file:
        file.writestr("archive/data.pkl", data)
        file.writestr("archive/byteorder", more.get("byteorder", b"little"))
        for key, content in (storages or {}).items():
            file.writestr(f"archive/data/{key}", content)


class Call:
    """Pickled as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


SCRIPT = """import torch

class Script(torch.nn.Module):
    @torch.jit.export
    def __getstate__(self) -> bool:
        return True

    @torch.jit.export
    def __setstate__(self, state: bool) -> None:
        self.training = state and torch.from_file("{mark}", True, 8).numel() >= 0
"""


def torch_script(path: Path, mark: Path) -> None:
    """Write a TorchScript archive whose `__setstate__` makes the file `mark`."""
    source = path.with_name("script_of_a_test.py")
    source.write_text(SCRIPT.format(mark=mark))
    spec = importlib.util.spec_from_file_location("script_of_a_test", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.jit.script(module.Script()).save(str(path))
    source.unlink()


def touch(mark: Path) -> bytes:
    """Return the opcodes of the two texts "posix", "system" and the tuple of a command."""
    command = f"touch {mark}".encode()
    return b"\x8c" + bytes([len(command)]) + command


def opcodes(mark: Path) -> dict[str, bytes]:
    """Return pickles, one for each opcode that calls something, makes an object, or claims memory."""
    argument = touch(mark)
    one, system, done = b"\x80\x04", b"cposix\nsystem\n", b"."
    return {
        "REDUCE": one + system + argument + b"\x85R" + done,
        "NEWOBJ": one + system + argument + b"\x85\x81" + done,
        "NEWOBJ_EX": one + system + argument + b"\x85}\x92" + done,
        "OBJ": one + b"(" + system + argument + b"o" + done,
        "INST": one + b"(" + argument + b"iposix\nsystem\n" + done,
        "STACK_GLOBAL": one + b"\x8c\x05posix\x8c\x06system\x93" + argument + b"\x85R" + done,
        "EXT1": one + b"\x82\x01" + argument + b"\x85R" + done,
        "EXT4": one + b"\x84\x01\x00\x00\x00" + argument + b"\x85R" + done,
        "BUILD": one + b"ctorch\nTensor\n)\x81}\x8c\x01a\x8c\x01bsb" + done,
        "attribute": one + b"cbuiltins\ngetattr\n" + system + b"\x8c\x08__call__\x86R" + argument + b"\x85R.",
        "marked class": one + b"ctorch.distributed.device_mesh\nDeviceMesh\n\x8c\x03cpuK\x01\x86R" + done,
        "bytearray": one + b"cbuiltins\nbytearray\n\x8a\x05\x00\x00\x00\x00\x10\x85R" + done,
        "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + done,
        "BINBYTES8": one + b"\x8e" + struct.pack("<Q", 1 << 40) + done,
        "BINUNICODE8": one + b"\x8d" + struct.pack("<Q", 1 << 40) + done,
        "LONG_BINPUT": one + b"}r\xff\xff\xff\x7f" + b"}}\x92" + done,
        "persistent id": one + b"\x8c\x04file\x8c\x09/etc/hosts\x86Q" + done,
        "PERSID": one + b"P/etc/passwd\n" + done,
        "nested tuples as a key": one + b"}K\x01" + b"2\x86" * 64 + b"Ns" + done,
        "nested tuples as a key, by memo": one + b"}K\x01\x94" + deep_tuple(64) + b"Ns" + done,
        "many states": one + b"cpathlib\nPosixPath\n)R" + b"Nb" * 20_000 + done,
        "texts made into bytes": one
        + b"c_codecs\nencode\n\x94X"
        + struct.pack("<I", 1 << 20)
        + b"a" * (1 << 20)
        + b"\x94\x8c\x06latin1\x94\x86\x94"
        + b"0"
        + b"h\x00h\x03R0" * 400
        + done,
        "keys of one hash": one
        + b"}("
        + b"".join(b"\x8a\x09" + (n * ((1 << 61) - 1)).to_bytes(9, "little") + b"N" for n in range(1, 100))
        + b"u"
        + done,
        "many marks": one + b"(" * 1_000_000 + done,
        "many lists": one + b"]" * 1_000_000 + done,
        "no end": one + b"}" * 10,
        "nothing": b"",
    }


def deep_tuple(depth: int) -> bytes:
    """Return opcodes that pair the memo's last entry with itself, `depth` times."""
    pairs = (b"h%c" % n + b"h%c" % n + b"\x86\x94" + b"0" for n in range(depth))
    return b"0" + b"".join(pairs) + b"h%c" % depth


def storage(key: str, numel: int) -> bytes:
    return (
        b"(\x8c\x07storagectorch\nFloatStorage\n\x8c" + bytes([len(key)]) + key.encode()
        + b"\x8c\x03cpu\x8a\x08" + struct.pack("<q", numel) + b"tQ"
    )  # fmt: skip


def tensor(offset: int, size: int, stride: int, key: str = "0") -> bytes:
    numbers = [b"\x8a\x08" + struct.pack("<q", number) for number in (offset, size, stride)]
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage(key, size) + numbers[0] + numbers[1] + b"\x85"
        + numbers[2] + b"\x85\x89ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip


def shapes() -> dict[str, bytes]:
    """Return pickles of tensors that do not fit into a storage of 16 bytes."""
    found = {
        "one element 2^40 times": tensor(0, 1 << 40, 0), "beyond the storage": tensor(0, 5, 1),
        "an offset beyond the storage": tensor(1 << 40, 1, 1), "a negative offset": tensor(-1, 1, 1),
        "a negative size": tensor(0, -1, 1), "a negative stride": tensor(3, 4, -1),
        "a stride beyond the storage": tensor(0, 2, 1 << 40), "no such storage": tensor(0, 1, 1, "../0"),
    }  # fmt: skip
    return {name: b"\x80\x04}\x8c\x01a" + content + b"s." for name, content in found.items()}


def _tar(path: Path, mark: Path) -> None:
    data = pickle.dumps(Call(os.system, f"touch {mark}"))
    with tarfile.open(path, "w") as file:
        for name in ("pickle", "storages", "tensors"):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))


def _zip_in_zip(path: Path, mark: Path) -> None:
    inner = io.BytesIO()
    torch.save(Call(os.system, f"touch {mark}"), inner)
    archive(path, inner.getvalue())


def _packed(path: Path, _: Path) -> None:
    archive(path, b"\x80\x04" + b"0" * (1 << 26), compression=zipfile.ZIP_DEFLATED)


def _twice(path: Path, mark: Path) -> None:
    with pytest.warns(UserWarning), zipfile.ZipFile(path, "w") as file:
        for data in (opcodes(mark)["REDUCE"], b"\x80\x04}."):
            file.writestr("archive/data.pkl", data)


def _huge_directory(path: Path, _: Path) -> None:
    """Write a file with holes, whose end says that its directory has 8 GiB."""
    size = 8 << 30
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, size, 1)
    with open(path, "wb") as file:
        file.write(b"PK\3\4")
        file.truncate(size)
        file.seek(size)
        file.write(
            end + locator + b"PK\5\6" + struct.pack("<4H2LH", 0, 0, *[0xFFFF] * 2, *[0xFFFFFFFF] * 2, 0)
        )


def _legacy(path: Path, mark: Path) -> None:
    torch.save(Call(os.system, f"touch {mark}"), path, _use_new_zipfile_serialization=False)


def _script_with_pickle(path: Path, mark: Path) -> None:
    """Write a TorchScript archive that also has a harmless data.pkl of tensors."""
    torch_script(path, mark)
    content = io.BytesIO()
    torch.save({}, content)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(content) as harmless:
        records = {name: old.read(name) for name in old.namelist()}
        top = next(iter(records)).partition("/")[0]
        records[f"{top}/data.pkl"] = harmless.read("archive/data.pkl")
    with zipfile.ZipFile(path, "w") as file:
        for name, data in records.items():
            file.writestr(name, data)


FILES: dict[str, Callable[[Path, Path], None]] = {
    "TorchScript": torch_script, "TorchScript with a dictionary": _script_with_pickle, "tar": _tar,
    "legacy": _legacy, "zip in zip": _zip_in_zip, "packed": _packed, "two pickles": _twice,
    "huge directory": _huge_directory,
}  # fmt: skip


def _metadata(path: Path) -> None:
    """Read `.metadata` of a folder of shards: a plain pickle, of which an archive is none."""
    folder = path.with_name("folder")
    folder.mkdir()
    content = path.read_bytes() if path.stat().st_size < 1 << 28 else b""
    if zipfile.is_zipfile(path) and content:
        with zipfile.ZipFile(path) as file:
            content = next(file.read(name) for name in file.namelist() if name.endswith("/data.pkl"))
    (folder / ".metadata").write_bytes(content)
    ShardedFiles(folder)


def _chunk(path: Path) -> None:
    """Read the file as the chunk of a sharded tensor."""
    folder = path.with_name("chunks")
    sharded_checkpoint.save({"a": torch.ones(2)}, checkpoint_id=folder, no_dist=True)
    metadata = (folder / ".metadata").read_bytes()
    size = len((folder / "__0_0.distcp").read_bytes())
    (folder / "__0_0.distcp").write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))
    (folder / ".metadata").write_bytes(metadata)
    ShardedFiles(folder).tensor("a")


READERS: dict[str, Callable[[Path], object]] = {
    "weights and adapters": lambda path: list(pickled_tensors(path)),
    "optimizer, schedule, scaler, random states": lambda path: load_plain(path, "a state"),
    "shards of weight sync": read_shard,
    "metadata of shards": _metadata,
}


def refused(reader: Callable[[Path], object], path: Path) -> tuple[str, int]:
    """Read in a process of its own; return the message of the ValueError and the memory in MiB."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def read() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            reader(path)
            message = ""
        except ValueError as error:
            message = str(error)
        except BaseException as error:
            message = f"!{type(error).__name__}: {error}"
        send.send((message, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10))
        send.close()
        os._exit(0)

    process = context.Process(target=read)
    process.start()
    send.close()
    found: tuple[str, int] = receive.recv()
    process.join()
    return found


def check_refused(reader: str, path: Path, mark: Path) -> None:
    message, memory = refused(READERS[reader], path)
    assert message and not message.startswith("!"), message
    assert str(path.parent) in message
    assert memory < 1024, f"{memory} MiB"
    assert not mark.exists()


def test_the_script_would_run(tmp_path: Path) -> None:
    """The tests below could fail: torch.load hands such an archive to torch.jit.load."""
    torch_script(tmp_path / "x.pt", tmp_path / "mark")
    assert not (tmp_path / "mark").exists()
    with pytest.warns(UserWarning, match="TorchScript"):
        torch.load(tmp_path / "x.pt", weights_only=False)
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_no_archive_of_tensors(tmp_path: Path, kind: str, reader: str) -> None:
    path, mark = tmp_path / "x.bin", tmp_path / "mark"
    FILES[kind](path, mark)
    check_refused(reader, path, mark)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", opcodes(Path("mark")))
def test_pickles_that_call_or_claim(tmp_path: Path, kind: str, reader: str) -> None:
    path, mark = tmp_path / "x.bin", tmp_path / "mark"
    archive(path, opcodes(mark)[kind])
    check_refused(reader, path, mark)


@pytest.mark.parametrize("kind", shapes())
def test_tensors_that_do_not_fit_their_storage(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.bin"
    archive(path, shapes()[kind], {"0": bytes(16)})
    check_refused("weights and adapters", path, tmp_path / "mark")


def test_a_tensor_that_fits_is_read(tmp_path: Path) -> None:
    """The pickles of the test above are right but for their numbers."""
    pickled = b"\x80\x04}\x8c\x01a" + tensor(1, 3, 1) + b"s."
    archive(tmp_path / "x.bin", pickled, {"0": struct.pack("<4f", 1, 2, 3, 4)})
    assert read_archive(tmp_path / "x.bin")["a"].tolist() == [2.0, 3.0, 4.0]


def test_another_byte_order_is_refused(tmp_path: Path) -> None:
    archive(tmp_path / "x.bin", b"\x80\x04}.", byteorder=b"big")
    with pytest.raises(ValueError, match="another byte order"):
        read_archive(tmp_path / "x.bin")


@pytest.mark.parametrize("kind", [*FILES])
def test_chunks_of_sharded_tensors(tmp_path: Path, kind: str) -> None:
    path, mark = tmp_path / "x.bin", tmp_path / "mark"
    FILES[kind](path, mark)
    with open(path, "rb") as file:
        head = file.read(1 << 20)
    path.write_bytes(head)
    with pytest.raises(ValueError, match="a cannot be read"):
        _chunk(path)
    assert not mark.exists()
