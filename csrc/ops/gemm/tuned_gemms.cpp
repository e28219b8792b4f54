// Converts tuned products to JSON, which checkpoints keep.

#include "ops/gemm/tuned_gemms.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <tuple>

#include "core/error.h"
#include "core/json.h"

namespace fastsft {
namespace {

using cuda::GemmKey;

std::atomic<bool> tuning{false};

// Returns the parts of a key that must match exactly: all but m, k, the alignments and the device.
auto kind_of(const GemmKey& key) {
  return std::tuple(key.n, key.lda, key.ldb, key.ldadd, key.ldout, key.transpose_a, key.transpose_b,
                    key.dtype, key.out_dtype, key.accumulates, key.tf32);
}

bool aligned_as_well(const GemmKey& key, const GemmKey& entry) {
  return key.alignment_a >= entry.alignment_a && key.alignment_b >= entry.alignment_b &&
         key.alignment_add >= entry.alignment_add && key.alignment_out >= entry.alignment_out;
}

// Returns how far `key` is from `entry` in m or k; nullopt if it is too far or another kind of
// product.
std::optional<int64_t> distance(const GemmKey& entry, const GemmKey& key) {
  const int64_t rows = std::abs(key.m - entry.m), inner = std::abs(key.k - entry.k);
  const bool in_reach = (rows == 0 || inner == 0) && 8 * rows <= entry.m && 8 * inner <= entry.k;
  if (!in_reach || kind_of(key) != kind_of(entry) || !aligned_as_well(key, entry)) return {};
  return rows + inner;
}

}  // namespace

TunedGemms& TunedGemms::instance() {
  static auto* const instance = new TunedGemms;  // leaked, like the plans that use it
  return *instance;
}

std::optional<TunedGemm> TunedGemms::near(const GemmKey& key) const {
  const std::lock_guard lock(mutex_);
  const TunedGemm* nearest = nullptr;
  int64_t least = 0;
  for (const TunedGemm& entry : entries_) {
    const auto away = distance(entry.key, key);
    if (away && (nearest == nullptr || *away < least)) nearest = &entry, least = *away;
  }
  return nearest == nullptr ? std::nullopt : std::optional(*nearest);
}

std::vector<TunedGemm> TunedGemms::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

void TunedGemms::set(std::vector<TunedGemm> entries) {
  const std::lock_guard lock(mutex_);
  entries_ = std::move(entries);
  ++generation_;
}

void TunedGemms::add(const TunedGemm& entry) {
  const std::lock_guard lock(mutex_);
  entries_.push_back(entry);
  ++generation_;
}

uint64_t TunedGemms::generation() const {
  const std::lock_guard lock(mutex_);
  return generation_;
}

GemmTuning::GemmTuning() { tuning = true; }
GemmTuning::~GemmTuning() { tuning = false; }
bool GemmTuning::active() { return tuning; }

namespace {

using cuda::Dtype;

constexpr std::array<std::pair<Dtype, const char*>, 3> kDtypes{
    {{Dtype::kFloat, "float32"}, {Dtype::kBFloat16, "bfloat16"}, {Dtype::kHalf, "float16"}}};

std::string name_of(Dtype dtype) {
  return std::ranges::find(kDtypes, dtype, &std::pair<Dtype, const char*>::first)->second;
}

Dtype dtype_named(const std::string& name) {
  for (const auto& [dtype, its_name] : kDtypes) {
    if (name == its_name) return dtype;
  }
  throw_invalid("tuned products: no dtype \"", name, "\"");
}

// Visits the numeric fields of a key with their JSON names.
template <typename Key, typename Visit>
void each_number(Key& key, const Visit& visit) {
  visit("m", key.m), visit("n", key.n), visit("k", key.k);
  visit("lda", key.lda), visit("ldb", key.ldb), visit("ldadd", key.ldadd);
  visit("ldout", key.ldout);
  visit("transpose_a", key.transpose_a), visit("transpose_b", key.transpose_b);
  visit("accumulates", key.accumulates), visit("tf32", key.tf32);
  visit("alignment_a", key.alignment_a), visit("alignment_b", key.alignment_b);
  visit("alignment_add", key.alignment_add), visit("alignment_out", key.alignment_out);
}

Json json_of(const TunedGemm& entry) {
  Json json;
  each_number(entry.key, [&](const char* name, const auto& value) { json[name] = value; });
  json["dtype"] = name_of(entry.key.dtype);
  json["out_dtype"] = name_of(entry.key.out_dtype);
  json["algorithm"] = entry.algorithm;
  json["gain"] = entry.gain;
  return json;
}

TunedGemm entry_of(const Json& json) {
  TunedGemm entry;
  each_number(entry.key, [&](const char* name, auto& value) { json.at(name).get_to(value); });
  entry.key.dtype = dtype_named(json.at("dtype").get<std::string>());
  entry.key.out_dtype = dtype_named(json.at("out_dtype").get<std::string>());
  json.at("algorithm").get_to(entry.algorithm);
  json.at("gain").get_to(entry.gain);
  return entry;
}

}  // namespace

std::string to_json(const std::vector<TunedGemm>& entries) {
  Json all = Json::array();
  for (const TunedGemm& entry : entries) all.push_back(json_of(entry));
  return all.dump();
}

std::vector<TunedGemm> parse_tuned_gemms(const std::string& text) {
  const Json all = parse_json(text, "tuned products");
  require(all.is_array(), "tuned products: expected an array");
  std::vector<TunedGemm> entries;
  try {
    for (const Json& json : all) entries.push_back(entry_of(json));
  } catch (const Json::exception& error) {
    throw_invalid("tuned products: ", error.what());
  }
  return entries;
}

}  // namespace fastsft
