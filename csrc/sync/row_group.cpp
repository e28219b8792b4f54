#include "sync/row_group.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace fastsft {
namespace {

constexpr int64_t kAlignment = 64;  // bytes; for slots and for the joined tensors

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Sizes of one tensor: bytes per row, row count, rows per chunk.
struct Cut {
  int64_t row_bytes = 0, rows = 0, chunk = 0;
  int64_t begin(int64_t rank) const { return std::min(rank * chunk, rows) * row_bytes; }
  int64_t bytes(int64_t rank) const { return begin(rank + 1) - begin(rank); }
  int64_t slot() const { return aligned(chunk * row_bytes); }
};

std::vector<Cut> cuts_of(std::span<const at::Tensor> rows, const std::vector<Shape>& shapes,
                         int64_t world_size) {
  require(rows.size() == shapes.size(), "weight sync: ", rows.size(), " tensors, but ",
          shapes.size(), " shapes");
  std::vector<Cut> cuts;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Shape& shape = shapes[i];
    require(!shape.empty(), "weight sync: a tensor without dimensions has no rows");
    const auto element_bytes = static_cast<int64_t>(rows[i].element_size());
    Cut cut{element_bytes, shape[0], (shape[0] + world_size - 1) / world_size};
    for (size_t dim = 1; dim < shape.size(); ++dim) cut.row_bytes *= shape[dim];
    cuts.push_back(cut);
  }
  return cuts;
}

int64_t slots_bytes(const std::vector<Cut>& cuts) {
  int64_t bytes = 0;
  for (const Cut& cut : cuts) bytes += cut.slot();
  return bytes;
}

// Copies bytes with memcpy on the CPU. This avoids creating views, a fixed cost that each tensor
// would pay in every sync.
void copy_bytes(const at::Tensor& from, int64_t begin, const at::Tensor& to, int64_t offset,
                int64_t bytes) {
  if (from.is_cpu() && to.is_cpu()) {
    std::memcpy(to.mutable_data_ptr<uint8_t>() + offset, from.const_data_ptr<uint8_t>() + begin,
                static_cast<size_t>(bytes));
  } else {
    to.narrow(0, offset, bytes).copy_(from.narrow(0, begin, bytes), /*non_blocking=*/true);
  }
}

void pack_slot(const at::Tensor& rows, int64_t bytes, const at::Tensor& to, int64_t offset) {
  if (rows.is_cpu() && rows.is_contiguous()) {
    std::memcpy(to.mutable_data_ptr<uint8_t>() + offset, rows.const_data_ptr(),
                static_cast<size_t>(bytes));
  } else {
    const at::Tensor flat = rows.detach().contiguous().view({-1}).view(at::kByte);
    copy_bytes(flat, 0, to, offset, bytes);
  }
}

}  // namespace

at::Tensor pack_rows(std::span<const at::Tensor> rows, const std::vector<Shape>& shapes,
                     int64_t rank, int64_t world_size) {
  require(!rows.empty(), "weight sync: no tensors to gather");
  const std::vector<Cut> cuts = cuts_of(rows, shapes, world_size);
  const at::Tensor packed = at::empty({slots_bytes(cuts)}, rows[0].options().dtype(at::kByte));
  int64_t offset = 0;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const int64_t bytes = cuts[i].bytes(rank);
    require(static_cast<int64_t>(rows[i].nbytes()) == bytes, "weight sync: tensor ", i, " of ",
            shapes.size(), " has ", rows[i].nbytes(), " bytes on rank ", rank, ", expected ", bytes,
            " by its shape");
    if (bytes > 0) pack_slot(rows[i], bytes, packed, offset);
    offset += cuts[i].slot();
  }
  return packed;
}

std::vector<at::Tensor> join_rows(const at::Tensor& gathered, std::span<const at::Tensor> rows,
                                  const std::vector<Shape>& shapes, int64_t world_size) {
  const std::vector<Cut> cuts = cuts_of(rows, shapes, world_size);
  const int64_t rank_bytes = slots_bytes(cuts);
  require(gathered.numel() == rank_bytes * world_size, "weight sync: gathered ", gathered.numel(),
          " bytes, expected ", rank_bytes * world_size);
  int64_t whole_bytes = 0;
  for (const Cut& cut : cuts) whole_bytes += aligned(cut.rows * cut.row_bytes);
  const at::Tensor whole = at::empty({whole_bytes}, gathered.options());
  std::vector<at::Tensor> tensors;
  int64_t slot = 0, begin = 0;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const int64_t bytes = cuts[i].rows * cuts[i].row_bytes;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      if (cuts[i].bytes(rank) == 0) continue;
      copy_bytes(gathered, rank * rank_bytes + slot, whole, begin + cuts[i].begin(rank),
                 cuts[i].bytes(rank));
    }
    tensors.push_back(
        whole.narrow(0, begin, bytes).view(rows[i].scalar_type()).view(at::IntArrayRef(shapes[i])));
    slot += cuts[i].slot();
    begin += aligned(bytes);
  }
  return tensors;
}

}  // namespace fastsft
