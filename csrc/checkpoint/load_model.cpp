#include "checkpoint/load_model.h"

#include <algorithm>
#include <memory>

#include "checkpoint/agreement.h"
#include "checkpoint/model_loader.h"
#include "core/error.h"
#include "storage/model_index.h"
#include "storage/safetensors_reader.h"

namespace fastsft {
namespace {

using Readers = std::vector<std::unique_ptr<SafetensorsReader>>;

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

Readers open_files(const std::string& directory) {
  Readers readers;
  for (const auto& path : weight_files(directory)) {
    readers.push_back(std::make_unique<SafetensorsReader>(path));
  }
  return readers;
}

std::span<const std::byte> bytes_of(const Readers& readers, const std::string& name) {
  for (const auto& reader : readers) {
    if (const TensorEntry* tensor = reader->find(name)) return reader->bytes(*tensor);
  }
  return {};
}

std::vector<std::string> read_directory(std::span<UnitState> units, const std::string& directory) {
  const Readers readers = open_files(directory);
  ModelLoader loader(units);
  for (const auto& reader : readers) {
    for (const auto& tensor : reader->tensors()) {
      loader.set(tensor.name, tensor.dtype, tensor.shape, reader->bytes(tensor).data(),
                 reader->path());
    }
  }
  std::vector<std::string> notes;
  for (const auto& name : loader.finish(directory)) {
    if (name == kHead &&
        !std::ranges::equal(bytes_of(readers, kHead), bytes_of(readers, kEmbedding))) {
      notes.push_back(concat(directory, ": config.json ties the head to the embedding, so ", kHead,
                             ", which differs from ", kEmbedding, ", is ignored"));
    }
  }
  return notes;
}

}  // namespace

std::vector<std::string> load_model(Strategy& strategy, Communicator& all,
                                    const std::string& directory) {
  std::vector<std::string> notes;
  Agreement agreement;
  agreement.attempt([&] { notes = read_directory(strategy.states(), directory); });
  agreement.settle(all, strategy.device(), "loading the model " + directory);
  return notes;
}

}  // namespace fastsft
