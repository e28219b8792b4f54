#pragma once

#include <string>
#include <vector>

#include "checkpoint/saved_form.h"
#include "storage/dtype.h"
#include "storage/safetensors_writer.h"

namespace fastsft {

struct SaveOptions {
  DType dtype = DType::kF32;                 // F32, BF16 or F16
  uint64_t max_shard_bytes = 5'000'000'000;  // of data, decimal
  SavedForm form = {};
};

// A tensor and where its bytes begin in the file. It has a place in the units, or bytes of its own.
struct PlannedTensor {
  TensorPlace place;
  TensorBytes carried;
  TensorSpec spec;
  uint64_t offset = 0;
};

struct PlannedFile {
  std::string name;
  std::string prefix;  // length and header
  std::vector<PlannedTensor> tensors;
  uint64_t size = 0;
};

// The weight files of a Hugging Face directory to the byte, before any of it is written; the same
// on every rank. The slots belong to the units, which outlive the plan.
struct ModelFilePlan {
  SaveOptions options;
  std::vector<PlannedFile> files;
  std::string index;  // content of model.safetensors.index.json; empty for a single file

  uint64_t bytes() const;
};

// Every tensor of the files: those of the units, then those that are carried.
std::vector<PlannedTensor> tensors_to_save(const std::vector<TensorPlace>& places,
                                           const SaveOptions& options);

ModelFilePlan plan_model_files(const std::vector<TensorPlace>& places, const SaveOptions& options);

}  // namespace fastsft
