#include <algorithm>

#include "core/error.h"
#include "sync/bucket.h"

namespace fastsft {
namespace {

constexpr uint64_t kSliceMultiple = 16;  // no element of any dtype is cut in two

class BucketList {
 public:
  Bucket& open() { return buckets_.back(); }
  void begin_bucket() {
    if (buckets_.empty() || !open().pieces.empty()) buckets_.emplace_back();
  }
  void append(size_t tensor, uint64_t begin, uint64_t bytes) {
    open().pieces.push_back({tensor, begin, bytes, open().bytes});
    open().bytes += bytes;
  }
  std::vector<Bucket> take() {
    if (!buckets_.empty() && open().pieces.empty()) buckets_.pop_back();
    return std::move(buckets_);
  }

 private:
  std::vector<Bucket> buckets_;
};

}  // namespace

std::vector<Bucket> cut_vllm_chunks(const SyncPlan& plan, uint64_t buffer_bytes) {
  BucketList list;
  list.begin_bucket();
  for (size_t tensor = 0; tensor < plan.sizes().size(); ++tensor) {
    list.append(tensor, 0, plan.sizes()[tensor]);
    if (list.open().bytes > buffer_bytes) list.begin_bucket();
  }
  return list.take();
}

std::vector<Bucket> cut_native_buckets(const SyncPlan& plan, uint64_t bucket_bytes) {
  require(bucket_bytes >= kSliceMultiple && bucket_bytes % kSliceMultiple == 0,
          "bucket_bytes: expected a multiple of ", kSliceMultiple, ", got ", bucket_bytes);
  BucketList list;
  list.begin_bucket();
  for (size_t tensor = 0; tensor < plan.sizes().size(); ++tensor) {
    const uint64_t bytes = plan.sizes()[tensor];
    if (bytes == 0) continue;
    if (bytes > bucket_bytes) {
      for (uint64_t begin = 0; begin < bytes;) {
        list.begin_bucket();
        const uint64_t slice = std::min(bucket_bytes, bytes - begin);
        list.append(tensor, begin, slice);
        begin += slice;
      }
      continue;
    }
    if (list.open().bytes + bytes > bucket_bytes) list.begin_bucket();
    list.append(tensor, 0, bytes);
  }
  return list.take();
}

std::vector<Bucket> cut_tensor_batches(const SyncPlan& plan, uint64_t batch_bytes) {
  BucketList list;
  list.begin_bucket();
  for (size_t tensor = 0; tensor < plan.sizes().size(); ++tensor) {
    const uint64_t bytes = plan.sizes()[tensor];
    if (bytes == 0) continue;
    if (!list.open().pieces.empty() && list.open().bytes + bytes > batch_bytes) list.begin_bucket();
    list.append(tensor, 0, bytes);
  }
  return list.take();
}

}  // namespace fastsft
