#include "data/batch_builder.h"

#include <algorithm>

#include "core/error.h"

namespace fastsft {
namespace {

// splitmix64.
uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

}  // namespace

BatchBuilder::BatchBuilder(int64_t vocab_size) : vocab_size_(vocab_size) {
  batch_.cu_seqlens.push_back(0);
}

void BatchBuilder::check_id(int64_t id, size_t token) const {
  require(id >= 0 && id < vocab_size_, "token ", token, " has id ", id,
          ", which is not in the model's vocabulary of ", vocab_size_,
          "; do tokenizer and model belong together?");
}

template <typename Id>
void BatchBuilder::add_ids(std::span<const Id> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    check_id(ids[i], i);
    batch_.input_ids.push_back(ids[i]);
    batch_.positions.push_back(static_cast<int32_t>(i));
  }
  if (!batch_.is_key.empty()) batch_.is_key.resize(batch_.input_ids.size(), 1);
  batch_.num_positions = std::max(batch_.num_positions, static_cast<int64_t>(ids.size()));
  end_conversation();
}

void BatchBuilder::add_tokens(std::span<const int32_t> ids) { add_ids(ids); }
void BatchBuilder::add_tokens(std::span<const int64_t> ids) { add_ids(ids); }

void BatchBuilder::add_token(int64_t id, int32_t position, bool is_key) {
  check_id(id, batch_.input_ids.size() - static_cast<size_t>(batch_.cu_seqlens.back()));
  if (!is_key && batch_.is_key.empty()) batch_.is_key.assign(batch_.input_ids.size(), 1);
  batch_.input_ids.push_back(id);
  batch_.positions.push_back(position);
  // One token more than the flags: an empty list stays empty while all are keys.
  if (!is_key || !batch_.is_key.empty()) batch_.is_key.push_back(is_key);
  batch_.num_positions = std::max(batch_.num_positions, int64_t{position} + 1);
}

void BatchBuilder::end_conversation() {
  const int64_t length = num_tokens() - batch_.cu_seqlens.back();
  batch_.cu_seqlens.push_back(static_cast<int32_t>(num_tokens()));
  batch_.max_seqlen = std::max(batch_.max_seqlen, length);
}

void BatchBuilder::key_tokens(int64_t row) {
  const uint64_t key = mixed(static_cast<uint64_t>(row));
  const size_t begin = batch_.token_keys.size(), end = batch_.input_ids.size();
  for (size_t i = begin; i < end; ++i) {
    batch_.token_keys.push_back(static_cast<int32_t>(mixed(key + (i - begin)) >> 32));
  }
}

void BatchBuilder::add_label(int64_t position, int64_t target, double weight) {
  require(target >= 0 && target < vocab_size_, "a label has id ", target,
          ", which is not in the model's vocabulary of ", vocab_size_);
  batch_.label_positions.push_back(position);
  batch_.targets.push_back(target);
  batch_.token_weights.push_back(static_cast<float>(weight));
}

}  // namespace fastsft
