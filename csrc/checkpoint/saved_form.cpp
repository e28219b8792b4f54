#include "checkpoint/saved_form.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace fastsft {

std::vector<std::byte> bytes_of(const CarriedTensor& tensor) {
  std::vector<std::byte> bytes(tensor.spec.bytes());
  tensor.bytes(0, bytes);
  return bytes;
}

std::vector<size_t> aligned_order(const std::vector<TensorSpec>& specs) {
  std::vector<size_t> order(specs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t left, size_t right) {
    return dtype_bits(specs[left].dtype) > dtype_bits(specs[right].dtype);
  });
  return order;
}

void SavedForm::carry(TensorSpec spec, std::string data) {
  require(data.size() == spec.bytes(), spec.name, ": expected ", spec.bytes(), " bytes, got ",
          data.size());
  const auto kept = std::make_shared<const std::string>(std::move(data));
  carried.push_back({std::move(spec), [kept](uint64_t offset, std::span<std::byte> to) {
                       const auto from = std::as_bytes(std::span(*kept));
                       std::ranges::copy(from.subspan(offset, to.size()), to.begin());
                     }});
}

void SavedForm::carry(TensorSpec spec, const std::string& path, uint64_t begin) {
  auto& file = files[path];
  if (file == nullptr) file = std::make_shared<const FileBytes>(path);
  require(begin + spec.bytes() <= file->size(), path, ": ", spec.name, ": expected ", spec.bytes(),
          " bytes from byte ", begin, " on, the file has ", file->size());
  carried.push_back({std::move(spec), [file, begin](uint64_t offset, std::span<std::byte> to) {
                       file->read_at(begin + offset, to);
                     }});
}

}  // namespace fastsft
