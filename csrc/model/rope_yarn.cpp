#include <ATen/ops/arange.h>
#include <ATen/ops/clamp.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/config_fields.h"
#include "model/rope_scaling.h"

namespace fastsft {
namespace {

// YaRN (arXiv 2309.00071): pairs that turn often in the trained positions keep their frequencies,
// those that turn seldom have them divided by `factor`, and between them the two are mixed.
struct Yarn {
  double factor, low, high;  // of pairs

  at::Tensor operator()(const at::Tensor& powers) const {
    const double span = high == low ? 0.001 : high - low;
    const at::Tensor interpolated =
        at::arange(powers.numel(), powers.options()).sub_(low).div_(span).clamp_(0, 1);
    const at::Tensor kept = interpolated.neg().add_(1);
    const at::Tensor slow = powers.mul(factor).reciprocal_();
    return slow.mul_(kept.neg().add_(1)).add_(powers.reciprocal().mul_(kept));
  }
};

// Python's `or`: 0 and null are the default, too.
double number_unless_zero(const ConfigFields& settings, const char* field, double fallback) {
  const double value = settings.number_or(field, 0);
  return value == 0 ? fallback : value;
}

double growth(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

double attention_factor(const ConfigFields& settings, double factor) {
  if (settings.has("attention_factor")) return settings.number_or("attention_factor", 1.0);
  const double scale = settings.number_or("mscale", 0);
  const double all_dims = settings.number_or("mscale_all_dim", 0);
  if (scale == 0 || all_dims == 0) return growth(factor, 1.0);
  return growth(factor, scale) / growth(factor, all_dims);
}

// The pair, as a fraction, that turns `rotations` times in `positions`.
double pair_of(double rotations, double positions, const RopeFields& fields) {
  const auto head_dim = static_cast<double>(fields.head_dim);
  return head_dim * std::log(positions / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(fields.theta));
}

RotaryScaling yarn(const RopeFields& fields) {
  const ConfigFields& settings = fields.settings;
  const double factor = settings.positive_number("factor");
  const char* const original = "original_max_position_embeddings";
  const auto positions = static_cast<double>(
      settings.has(original) ? settings.positive(original)
                             : fields.config.positive("max_position_embeddings"));
  double low = pair_of(number_unless_zero(settings, "beta_fast", 32), positions, fields);
  double high = pair_of(number_unless_zero(settings, "beta_slow", 1), positions, fields);
  require(std::isfinite(low) && std::isfinite(high), settings.where(),
          ": \"beta_fast\" and \"beta_slow\" give no range of frequencies; expected positive "
          "numbers, and a \"rope_theta\" other than 1");
  if (settings.boolean_or("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  const Yarn frequencies{.factor = factor,
                         .low = std::max(low, 0.0),
                         .high = std::min(high, static_cast<double>(fields.head_dim - 1))};
  return {.frequencies = frequencies, .attention_factor = attention_factor(settings, factor)};
}

const bool kRopeYarnRegistered = RopeTypeRegistry::instance().add("yarn", yarn);

}  // namespace
}  // namespace fastsft
