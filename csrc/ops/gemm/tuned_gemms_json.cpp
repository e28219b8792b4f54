// Converts tuned products to JSON, which checkpoints keep. The kernels' emulation does without it.
#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "ops/gemm/tuned_gemms.h"

namespace fastsft {
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

// Visits a key's numeric fields with their JSON names.
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

// The fields of an 8-bit product. Other products do not have them.
void write_fp8(const GemmKey& key, Json& json) {
  if (!key.has_scales()) return;
  json["fp8"] = key.fp8 == cuda::Fp8Type::kE5m2 ? "e5m2" : "e4m3";
  json["rowwise_scales"] = key.rowwise_scales;
  json["fast_accumulation"] = key.fast_accumulation;
}

void read_fp8(const Json& json, GemmKey& key) {
  if (!json.contains("fp8")) return;
  const auto name = json.at("fp8").get<std::string>();
  require(name == "e4m3" || name == "e5m2", "tuned products: no 8-bit float \"", name, "\"");
  key.fp8 = name == "e5m2" ? cuda::Fp8Type::kE5m2 : cuda::Fp8Type::kE4m3;
  json.at("rowwise_scales").get_to(key.rowwise_scales);
  json.at("fast_accumulation").get_to(key.fast_accumulation);
}

Json json_of(const TunedGemm& entry) {
  Json json;
  each_number(entry.key, [&](const char* name, const auto& value) { json[name] = value; });
  write_fp8(entry.key, json);
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
  read_fp8(json, entry.key);
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
