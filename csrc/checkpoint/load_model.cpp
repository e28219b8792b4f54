#include <algorithm>
#include <memory>

#include "checkpoint/agreement.h"
#include "checkpoint/model_loader.h"
#include "core/error.h"
#include "storage/model_index.h"
#include "storage/safetensors_reader.h"

namespace fastsft {
namespace {

using OpenFiles = std::vector<std::unique_ptr<SafetensorsReader>>;

constexpr const char* kHeadWeight = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

std::span<const std::byte> bytes_of(const OpenFiles& readers, const std::string& name) {
  for (const auto& reader : readers) {
    if (const TensorEntry* tensor = reader->find(name)) return reader->bytes(*tensor);
  }
  return {};
}

}  // namespace

std::vector<std::string> read_model(std::vector<UnitState> units, const std::string& directory) {
  OpenFiles readers;
  for (const auto& path : weight_files(directory)) {
    readers.push_back(std::make_unique<SafetensorsReader>(path));
  }
  ModelLoader loader(std::move(units));
  for (const auto& reader : readers) {
    for (const auto& tensor : reader->tensors()) {
      loader.set(tensor.name, tensor.dtype, tensor.shape, reader->bytes(tensor).data(),
                 reader->path());
    }
  }
  std::vector<std::string> notes;
  for (const auto& name : loader.finish(directory)) {
    if (name == kHeadWeight &&
        !std::ranges::equal(bytes_of(readers, kHeadWeight), bytes_of(readers, kEmbedding))) {
      notes.push_back(concat(directory, ": config.json ties the head to the embedding, so ",
                             kHeadWeight, ", which differs from ", kEmbedding, ", is ignored"));
    }
  }
  return notes;
}

std::vector<std::string> load_model(Strategy& strategy, Communicator& all,
                                    const std::string& directory) {
  std::vector<std::string> notes;
  Agreement agreement;
  agreement.attempt([&] { notes = read_model(strategy.all_states(), directory); });
  agreement.settle(all, strategy.device(), "loading the model " + directory);
  return notes;
}

}  // namespace fastsft
