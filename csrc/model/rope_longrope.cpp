#include <ATen/ops/tensor.h>

#include <cmath>
#include <vector>

#include "model/config_fields.h"
#include "model/rope_scaling.h"

namespace fastsft {
namespace {

constexpr const char* kOriginal = "original_max_position_embeddings";

// LongRoPE (arXiv 2402.13753): a factor for each pair. "short_factor" holds up to the original
// positions, "long_factor" for batches with a longer row.
at::Tensor factors_of(const RopeFields& fields, const char* name) {
  const Json& given = fields.settings.json().value(name, Json());
  const auto pairs = static_cast<size_t>(fields.head_dim / 2);
  std::vector<double> factors;
  for (const Json& each : given) {
    if (each.is_number() && each.get<double>() > 0) factors.push_back(each.get<double>());
  }
  require(given.is_array() && given.size() == pairs && factors.size() == pairs,
          fields.settings.where(), ": \"", name, "\" is ", given.dump(), ", expected a list of ",
          pairs, " positive numbers, one for each pair of head_dim ", fields.head_dim);
  return at::tensor(factors, at::TensorOptions().dtype(at::kFloat));
}

// Where the settings alone have the original positions, releases of transformers differ in what
// they make of them.
void check_original(const RopeFields& fields) {
  if (!fields.settings.has(kOriginal)) return;
  const int64_t own = fields.settings.positive(kOriginal);
  require(fields.config.has(kOriginal) && fields.config.positive(kOriginal) == own,
          fields.settings.where(), ": \"", kOriginal, "\" is ", own,
          ", expected the same value at the top of config.json, where it has ",
          fields.config.json().value(kOriginal, Json()).dump());
}

double attention_factor(const RopeFields& fields, int64_t original) {
  if (fields.settings.has("attention_factor")) {
    return fields.settings.number_or("attention_factor", 1.0);
  }
  const auto positions = static_cast<double>(fields.config.positive("max_position_embeddings"));
  const double factor = fields.config.has(kOriginal) ? positions / static_cast<double>(original)
                                                     : fields.settings.positive_number("factor");
  if (factor <= 1) return 1.0;
  return std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
}

RotaryScaling longrope(const RopeFields& fields) {
  check_original(fields);
  factors_of(fields, "long_factor");
  const int64_t original = fields.config.has(kOriginal)
                               ? fields.config.positive(kOriginal)
                               : fields.config.positive("max_position_embeddings");
  const at::Tensor factors = factors_of(fields, "short_factor");
  return {.frequencies =
              [factors](const at::Tensor& powers) { return factors.mul(powers).reciprocal_(); },
          .attention_factor = attention_factor(fields, original),
          .most_positions = original};
}

const bool kRopeLongropeRegistered = RopeTypeRegistry::instance().add("longrope", longrope);

}  // namespace
}  // namespace fastsft
