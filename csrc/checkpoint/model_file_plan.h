#pragma once

#include <string>
#include <vector>

#include "checkpoint/saved_form.h"
#include "storage/dtype.h"
#include "storage/safetensors_writer.h"

namespace fastsft {

struct SaveOptions {
  DType dtype = DType::kF32;                 // F32, BF16 or F16
  uint64_t max_shard_bytes = 5'000'000'000;  // size limit for a file's data; 5 GB, decimal
  SavedForm form = {};
};

// A tensor and its offset in the file. Either a unit holds it (`place`), or `carried` supplies its
// bytes.
struct PlannedTensor {
  TensorPlace place;
  TensorBytes carried;
  TensorSpec spec;
  uint64_t offset = 0;
};

struct PlannedFile {
  std::string name;
  std::string prefix;  // header length and header
  std::vector<PlannedTensor> tensors;
  uint64_t size = 0;
};

// The complete layout for a model's weight files, known before anything is written; the same on
// every rank. `place.slot` points into the units, which must outlive the plan.
struct ModelFilePlan {
  SaveOptions options;
  std::vector<PlannedFile> files;
  std::string index;  // content of model.safetensors.index.json; empty for a single file

  uint64_t bytes() const;
};

// Returns all tensors in the files: first the units' tensors, then carried tensors.
std::vector<PlannedTensor> tensors_to_save(const std::vector<TensorPlace>& places,
                                           const SaveOptions& options);

ModelFilePlan plan_model_files(const std::vector<TensorPlace>& places, const SaveOptions& options);

}  // namespace fastsft
