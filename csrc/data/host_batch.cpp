#include "data/host_batch.h"

#include <algorithm>

#include "core/error.h"
#include "data/longest_first.h"

namespace fastsft {
namespace {

void add_plain(const TokenDataset& dataset, int64_t row, double weight, BatchBuilder& builder) {
  const auto ids = dataset.ids(row);
  const auto learned = dataset.learned(row);
  const int64_t begin = builder.num_tokens();
  builder.add_tokens(ids.first(static_cast<size_t>(learned.back().end - 1)));
  for (const TokenSpan& span : learned) {
    for (int32_t p = std::max(span.begin, 1); p < span.end; ++p) {
      builder.add_label(begin + p - 1, ids[static_cast<size_t>(p)], weight);
    }
  }
}

bool is_plain(const TokenDataset& dataset, int64_t row) {
  if (dataset.general(row) != nullptr) return false;
  const auto ids = dataset.ids(row);
  return dataset.masked_id() < 0 ||
         std::find(ids.begin(), ids.end(), dataset.masked_id()) == ids.end();
}

const GeneralRow& general_of(const TokenDataset& dataset, int64_t row) {
  static const GeneralRow kNothing;
  const GeneralRow* general = dataset.general(row);
  return general == nullptr ? kNothing : *general;
}

// A general row's tokens, with positions and mask.
class GeneralTokens {
 public:
  GeneralTokens(const TokenDataset& dataset, int64_t row, const BatchRules& rules)
      : row_(general_of(dataset, row)),
        rules_(rules),
        ids_(dataset.ids(row)),
        masked_id_(dataset.masked_id()) {}

  size_t size() const { return ids_.size(); }
  int32_t id(size_t i) const { return ids_[i]; }
  int32_t position(size_t i) const {
    return row_.positions.empty() ? static_cast<int32_t>(i) : row_.positions[i];
  }
  bool is_key(size_t i) const {
    return (row_.is_key.empty() || row_.is_key[i] != 0) && ids_[i] != masked_id_;
  }
  // Returns where the conversation ends that begins at `begin`.
  size_t end_of(size_t begin) const {
    if (!rules_.find_packed || row_.has_mask || row_.positions.empty()) return size();
    size_t end = begin + 1;
    while (end < size() && row_.positions[end] == row_.positions[end - 1] + 1) ++end;
    return end;
  }
  // Returns true if masked tokens may be left out. With a sliding window shorter than the row,
  // removing tokens would change which others lie inside the window.
  bool may_leave_out() const {
    return rules_.window == 0 || static_cast<int64_t>(size()) <= rules_.window;
  }

 private:
  const GeneralRow& row_;
  const BatchRules& rules_;
  std::span<const int32_t> ids_;
  int32_t masked_id_;
};

// Adds a conversation. `labels`: the row's labels, not shifted.
void add_conversation(const GeneralTokens& tokens, std::span<const int32_t> labels, size_t begin,
                      size_t end, double weight, BatchBuilder& builder) {
  const auto has_target = [&](size_t i) {
    return i + 1 < labels.size() && labels[i + 1] != kIgnoredLabel;
  };
  while (end > begin && !has_target(end - 1)) --end;
  if (end == begin) return;
  for (size_t i = begin; i < end; ++i) {
    if (!tokens.is_key(i) && !has_target(i) && tokens.may_leave_out()) continue;
    if (has_target(i)) builder.add_label(builder.num_tokens(), labels[i + 1], weight);
    builder.add_token(tokens.id(i), tokens.position(i), tokens.is_key(i));
  }
  builder.end_conversation();
}

void add_row(const TokenDataset& dataset, int64_t row, double weight, const BatchRules& rules,
             BatchBuilder& builder) {
  if (dataset.num_targets(row) == 0) return;
  if (is_plain(dataset, row)) return add_plain(dataset, row, weight, builder);
  const GeneralTokens tokens(dataset, row, rules);
  const std::vector<int32_t> labels = dataset.labels(row);
  for (size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    end = tokens.end_of(begin);
    add_conversation(tokens, labels, begin, end, weight, builder);
  }
}

// Returns the batch with cuDNN's lists, if the rules ask for them.
HostBatch with_cudnn(HostBatch batch, const BatchRules& rules) {
  if (rules.cudnn) batch.cudnn = cudnn_inputs(batch.cu_seqlens, *rules.cudnn);
  return batch;
}

}  // namespace

HostBatch make_batch(const TokenDataset& dataset, std::span<const int64_t> rows,
                     std::span<const double> weights, const BatchRules& rules) {
  require(rows.size() == weights.size(), rows.size(), " rows with ", weights.size(), " weights");
  BatchBuilder builder(rules.vocab_size);
  for (size_t i = 0; i < rows.size(); ++i) {
    add_row(dataset, rows[i], weights[i], rules, builder);
    if (rules.token_keys) builder.key_tokens(rows[i]);
  }
  return rules.cudnn ? with_cudnn(longest_first(builder.build()), rules) : builder.build();
}

HostBatch make_unlabelled_batch(const TokenDataset& dataset, std::span<const int64_t> rows,
                                const BatchRules& rules) {
  BatchBuilder builder(rules.vocab_size);
  for (const int64_t row : rows) {
    if (is_plain(dataset, row)) {
      builder.add_tokens(dataset.ids(row));
      continue;
    }
    const GeneralTokens tokens(dataset, row, rules);
    for (size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
      end = tokens.end_of(begin);
      for (size_t i = begin; i < end; ++i) {
        builder.add_token(tokens.id(i), tokens.position(i), tokens.is_key(i));
      }
      builder.end_conversation();
    }
  }
  return with_cudnn(builder.build(), rules);
}

HostBatch make_unlabelled_batch(std::span<const int64_t> ids, std::span<const int64_t> lengths,
                                const BatchRules& rules) {
  BatchBuilder builder(rules.vocab_size);
  size_t at = 0;
  for (int64_t length : lengths) {
    require(length >= 0 && at + static_cast<size_t>(length) <= ids.size(), "lengths do not fit ",
            ids.size(), " ids");
    builder.add_tokens(ids.subspan(at, static_cast<size_t>(length)));
    at += static_cast<size_t>(length);
  }
  require(at == ids.size(), "lengths add up to ", at, ", but there are ", ids.size(), " ids");
  return with_cudnn(builder.build(), rules);
}

namespace {

// Returns the splitmix64 hash of a number.
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
  // `input_ids` already holds this token, so an empty `is_key` stays empty while all tokens are
  // keys.
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
