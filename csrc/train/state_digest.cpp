#include "train/state_digest.h"

#include "storage/crc32c.h"

namespace fastsft {
namespace {

uint32_t add_to_digest(uint32_t digest, const at::Tensor& tensor) {
  if (!tensor.defined()) return digest;
  const at::Tensor host = tensor.cpu().contiguous();
  return crc32c({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()}, digest);
}

uint32_t digest_state(const UnitState& state) {
  uint32_t digest = 0;
  digest = add_to_digest(add_to_digest(digest, state.master), state.high);
  for (const auto& value : state.values) digest = add_to_digest(digest, value);
  if (state.nf4) digest = add_to_digest(digest, state.nf4->range());
  return digest;
}

}  // namespace

GradientDigest::GradientDigest(Gradients& gradients) : gradients_(gradients) {
  gradients_.set_observer([this](const at::Tensor& own) { own_ = add_to_digest(own_, own); });
}

ReplayDigests::Digest GradientDigest::value(const at::Tensor& totals, size_t num_units) {
  ReplayDigests::Digest digest{.own = add_to_digest(own_, totals.narrow(0, 0, 1))};
  for (size_t unit = 0; unit < num_units; ++unit) {
    digest.reduced = add_to_digest(digest.reduced, gradients_.local(unit));
  }
  return digest;
}

std::vector<UnitDigest> digest_states(Strategy& strategy, const std::vector<ParamUnit>& units) {
  std::vector<UnitDigest> digests;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    UnitDigest digest{.unit = units[unit].name(),
                      .shard = strategy.replicated() ? 0 : strategy.shards().rank(),
                      .state = digest_state(strategy.states()[unit])};
    digest.parameters = add_to_digest(0, strategy.gather(unit));
    strategy.release(unit);
    digests.push_back(std::move(digest));
  }
  for (size_t unit = 0; unit < strategy.frozen().states().size(); ++unit) {
    const UnitState& state = strategy.frozen().states()[unit];
    UnitDigest digest{.unit = state.unit->name(),
                      .shard = strategy.frozen().by_ranges() ? strategy.shards().rank() : 0,
                      .state = digest_state(state)};
    digest.parameters = add_to_digest(0, strategy.frozen().gather(unit));
    strategy.frozen().release(unit);
    digests.push_back(std::move(digest));
  }
  return digests;
}

}  // namespace fastsft
