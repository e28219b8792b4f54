#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings/bind.h"
#include "core/error.h"
#include "storage/atomic_directory.h"
#include "storage/crc32c.h"
#include "storage/file_name.h"
#include "storage/file_ranges.h"
#include "storage/file_set.h"
#include "storage/model_index.h"
#include "storage/posix_call.h"
#include "storage/protection.h"
#include "storage/removal.h"
#include "storage/rotation.h"
#include "storage/run_lock.h"
#include "storage/safetensors_reader.h"
#include "storage/safetensors_writer.h"
#include "storage/staged_files.h"
#include "storage/weight_files.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace fastsft::bindings {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using Lines = py::typing::List<py::str>;

std::span<const std::byte> bytes_in(const py::bytes& data) {
  return std::as_bytes(std::span(std::string_view(data)));
}

void bind_safetensors(py::module_& module) {
  py::class_<TensorEntry>(module, "TensorEntry")
      .def_readonly("name", &TensorEntry::name)
      .def_property_readonly("dtype",
                             [](const TensorEntry& t) { return std::string(dtype_name(t.dtype)); })
      .def_readonly("shape", &TensorEntry::shape)
      .def_readonly("begin", &TensorEntry::begin)
      .def_readonly("end", &TensorEntry::end);
  py::class_<SafetensorsReader>(module, "SafetensorsReader")
      .def(py::init<const std::string&>(), "path"_a, Unlocked())
      .def_property_readonly("tensors", &SafetensorsReader::tensors)
      .def_property_readonly("metadata", &SafetensorsReader::metadata)
      .def(
          "bytes",
          [](const SafetensorsReader& reader, const std::string& name) {
            const TensorEntry* tensor = reader.find(name);
            require(tensor != nullptr, reader.path(), ": no tensor \"", name, "\"");
            const auto bytes = reader.bytes(*tensor);
            return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          },
          "name"_a);
  py::class_<TensorSpec>(module, "TensorSpec")
      .def(py::init([](std::string name, const std::string& dtype, std::vector<uint64_t> shape) {
             const auto known = find_dtype(dtype);
             require(known.has_value(), "unknown dtype \"", dtype, "\"");
             return TensorSpec{std::move(name), *known, std::move(shape)};
           }),
           "name"_a, "dtype"_a, "shape"_a);
  py::class_<SafetensorsWriter>(module, "SafetensorsWriter")
      .def(py::init([](const std::string& path, std::vector<TensorSpec> specs,
                       SafetensorsMetadata metadata) {
             return std::make_unique<SafetensorsWriter>(posix_file_system(), path, std::move(specs),
                                                        std::move(metadata));
           }),
           "path"_a, "specs"_a, "metadata"_a = SafetensorsMetadata{}, Unlocked())
      .def(
          "write", [](SafetensorsWriter& w, const py::bytes& data) { w.write(bytes_in(data)); },
          "data"_a)
      .def("finish", &SafetensorsWriter::finish, Unlocked());
}

void bind_files(py::module_& module) {
  py::class_<FileDigest>(module, "FileDigest")
      .def(py::init([](std::string name, uint64_t size, uint32_t crc32c) {
             return FileDigest{std::move(name), size, crc32c};
           }),
           "name"_a, "size"_a, "crc32c"_a)
      .def_readonly("name", &FileDigest::name)
      .def_readonly("size", &FileDigest::size)
      .def_readonly("crc32c", &FileDigest::crc32c);
  py::class_<RangeDigest>(module, "RangeDigest")
      .def(py::init([](std::string name, uint64_t offset, uint64_t size, uint32_t crc32c) {
             return RangeDigest{std::move(name), offset, size, crc32c};
           }),
           "name"_a, "offset"_a, "size"_a, "crc32c"_a)
      .def_readonly("name", &RangeDigest::name)
      .def_readonly("offset", &RangeDigest::offset)
      .def_readonly("size", &RangeDigest::size)
      .def_readonly("crc32c", &RangeDigest::crc32c);
  py::class_<ChecksummedRanges>(module, "ChecksummedRanges")
      .def(py::init([](const std::string& path, bool direct) {
             return std::make_unique<ChecksummedRanges>(
                 direct ? direct_file_system() : posix_file_system(), path);
           }),
           "path"_a, "direct"_a = false, Unlocked())
      .def(
          "write_at",
          [](ChecksummedRanges& ranges, uint64_t offset, const py::bytes& data) {
            const auto bytes = bytes_in(data);
            const py::gil_scoped_release unlocked;
            ranges.write_at(offset, bytes);
          },
          "offset"_a, "data"_a)
      .def("finish", &ChecksummedRanges::finish, Unlocked());
  module.def("join_ranges", &join_ranges, "ranges"_a, Unlocked());
  module.def(
      "write_file",
      [](const std::string& path, const std::string& content) {
        return write_file(posix_file_system(), path, content);
      },
      "path"_a, "content"_a, Unlocked());
  module.def("digest_file", &digest_file, "path"_a, Unlocked());
  module.def(
      "sync_file", [](const std::string& path) { posix_file_system().sync_file(path); }, "path"_a,
      Unlocked());
  module.def(
      "sync_directory", [](const std::string& path) { posix_file_system().sync_directory(path); },
      "path"_a, Unlocked());
  module.def("path_inside", &path_inside, "directory"_a, "name"_a, "where"_a, Unlocked());
  module.def("nested_path_inside", &nested_path_inside, "directory"_a, "name"_a, "where"_a,
             Unlocked());
  module.def(
      "replace_file",
      [](const std::string& path, const std::string& content) {
        replace_file(posix_file_system(), path, content);
      },
      "path"_a, "content"_a, Unlocked());
  module.def(
      "available_bytes",
      [](const std::string& path) { return posix_file_system().available_bytes(path); }, "path"_a,
      Unlocked());
  module.def(
      "crc32c",
      [](const py::bytes& data, uint32_t previous) { return crc32c(bytes_in(data), previous); },
      "data"_a, "previous"_a = 0);
  module.def("crc32c_combine", &crc32c_combine, "first"_a, "second"_a, "second_size"_a);
  module.def(
      "crc32c_portable",
      [](const py::bytes& data, uint32_t previous) {
        return crc32c_portable(bytes_in(data), previous);
      },
      "data"_a, "previous"_a = 0);
}

// Calls `work` without the GIL, and appends the lines that it reports to `unremoved`. `work` gets
// nullptr if Python passed no list.
template <typename Work>
auto telling(std::optional<Lines>& unremoved, const Work& work) {
  Unremoved lines;
  const auto result = [&] {
    const py::gil_scoped_release unlocked;
    return work(unremoved ? &lines : nullptr);
  }();
  for (const auto& line : lines) unremoved->append(py::str(line));
  return result;
}

void bind_checkpoint_directories(py::module_& module) {
  py::class_<Manifest>(module, "Manifest")
      .def(py::init([](int64_t step, int world_size, std::string layout_hash,
                       std::vector<FileDigest> files) {
             return Manifest{step, world_size, std::move(layout_hash), std::move(files)};
           }),
           "step"_a, "world_size"_a, "layout_hash"_a, "files"_a)
      .def_readonly("step", &Manifest::step)
      .def_readonly("world_size", &Manifest::world_size)
      .def_readonly("layout_hash", &Manifest::layout_hash)
      .def_readonly("files", &Manifest::files)
      .def("json", &manifest_json);
  module.def("read_manifest", &read_manifest, "directory"_a, "name"_a = kManifest, Unlocked());
  module.def(
      "verify_directory",
      [](const std::string& directory, bool checksums) {
        return verify_directory(directory,
                                checksums ? VerifyDepth::kChecksums : VerifyDepth::kSizes);
      },
      "directory"_a, "checksums"_a = true, Unlocked());
  py::class_<AtomicDirectory>(module, "AtomicDirectory")
      .def(py::init([](std::string parent, const std::string& label) {
             return std::make_unique<AtomicDirectory>(posix_file_system(), std::move(parent),
                                                      label);
           }),
           "parent"_a, "label"_a, Unlocked())
      .def_property_readonly("path", &AtomicDirectory::path)
      .def("commit", &AtomicDirectory::commit, "name"_a, "manifest"_a, Unlocked())
      .def_property_readonly("kept", &AtomicDirectory::kept)
      .def("discard", &AtomicDirectory::discard, Unlocked());
  py::class_<RunLock>(module, "RunLock")
      .def(py::init<const std::string&, const std::string&, const std::string&>(), "directory"_a,
           "holder"_a = "another run",
           "way_out"_a = "wait for it, stop it, or choose another --output_dir", Unlocked())
      .def("release", &RunLock::release);
  module.def(
      "restore_replaced",
      [](const std::string& parent, std::optional<Lines> unremoved) {
        telling(unremoved, [&](Unremoved* told) {
          restore_replaced(posix_file_system(), parent, told);
          return 0;
        });
      },
      "parent"_a, "unremoved"_a = py::none());
  module.def(
      "remove_leftovers",
      [](const std::string& parent, std::optional<Lines> unremoved) {
        return telling(unremoved, [&](Unremoved* told) {
          return remove_leftovers(posix_file_system(), parent, told);
        });
      },
      "parent"_a, "unremoved"_a = py::none());
  module.def("protection_of", &protection_of, "path"_a, Unlocked());
  module.def("protection_inside", &protection_inside, "directory"_a, Unlocked());
}

void bind_rotation(py::module_& module) {
  module.def(
      "list_checkpoints",
      [](const std::string& directory, bool links) {
        std::vector<std::string> names;
        const Links listed = links ? Links::kListed : Links::kLeftOut;
        for (auto& entry : list_checkpoints(posix_file_system(), directory, listed)) {
          names.push_back(std::move(entry.name));
        }
        return names;
      },
      "output_directory"_a, "links"_a = false, Unlocked());
  module.def(
      "rotate_checkpoints",
      [](const std::string& directory, int limit, const std::vector<std::string>& kept,
         std::optional<Lines> unremoved) {
        return telling(unremoved, [&](Unremoved* told) {
          return rotate_checkpoints(posix_file_system(), directory, limit, kept, told);
        });
      },
      "output_directory"_a, "limit"_a, "kept"_a = std::vector<std::string>(),
      "unremoved"_a = py::none());
  module.def(
      "delete_directory",
      [](const std::string& path) { return delete_directory(posix_file_system(), path); }, "path"_a,
      Unlocked());
  module.def(
      "remove_named",
      [](const std::string& path, const std::vector<std::string>& names) {
        return remove_named(posix_file_system(), path, names);
      },
      "directory"_a, "names"_a, Unlocked());
  module.def(
      "holds_manifest",
      [](const std::string& path) { return holds_manifest(posix_file_system(), path); }, "path"_a,
      Unlocked());
  module.def(
      "put_aside",
      [](const std::string& path) {
        return put_aside(posix_file_system(), path, last_component(path));
      },
      "path"_a, Unlocked());
}

void bind_model_files(py::module_& module) {
  module.def("file_set_name", &file_set_name);
  module.def("is_our_model", &is_our_model, "directory"_a, Unlocked());
  module.def(
      "install_file_set",
      [](const std::string& parent, const std::string& name) {
        return install_file_set(posix_file_system(), parent, name);
      },
      "parent"_a, "name"_a, Unlocked());
  module.def(
      "file_set_obstacle",
      [](const std::string& parent, const std::string& name) {
        return file_set_obstacle(posix_file_system(), parent, name);
      },
      "parent"_a, "name"_a, Unlocked());
  module.def(
      "keep_file_set",
      [](const std::string& parent, const std::string& name) {
        return keep_file_set(posix_file_system(), parent, name);
      },
      "parent"_a, "name"_a, Unlocked());
  py::class_<BrokenFileSet>(module, "BrokenFileSet")
      .def_readonly("name", &BrokenFileSet::name)
      .def_readonly("problem", &BrokenFileSet::problem)
      .def_readonly("removed", &BrokenFileSet::removed);
  module.def(
      "finish_file_sets",
      [](const std::string& parent, bool remove_useless) {
        return finish_file_sets(posix_file_system(), parent, remove_useless);
      },
      "parent"_a, "remove_useless"_a = false, Unlocked());
  module.def(
      "plan_shards",
      [](const std::vector<std::pair<std::string, uint64_t>>& sizes, uint64_t max_bytes) {
        std::vector<SizedTensor> tensors;
        for (const auto& [name, bytes] : sizes) tensors.push_back({name, bytes});
        std::vector<std::pair<std::string, std::vector<std::string>>> result;
        for (const auto& shard : plan_shards(tensors, max_bytes)) {
          std::vector<std::string> names;
          for (size_t i : shard.tensors) names.push_back(tensors[i].name);
          result.emplace_back(shard.file_name, std::move(names));
        }
        return result;
      },
      "tensors"_a, "max_bytes"_a);
  module.def(
      "read_weight_map",
      [](const std::string& directory) { return read_model_index(directory).weight_map; },
      "directory"_a, Unlocked());
  module.def("weight_files", &weight_files, "directory"_a, Unlocked());
}

}  // namespace

void bind_storage(py::module_& module) {
  py::register_exception<FileError>(module, "FileError", PyExc_RuntimeError);
  bind_files(module);
  bind_safetensors(module);  // its writer returns a FileDigest
  bind_checkpoint_directories(module);
  bind_rotation(module);
  bind_model_files(module);
}

}  // namespace fastsft::bindings
