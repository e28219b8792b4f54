#include "model/adapter_products.h"

#include <algorithm>

#include "ops/dropout/dropout.h"
#include "ops/gemm/gemm.h"

namespace fastsft {
namespace {

using Part = AdapterRefs::Part;

at::Tensor ranks_of(const Part& part, const at::Tensor& products) {
  return products.narrow(1, part.first, part.b.columns);
}

at::Tensor columns_of(const Part& part, const at::Tensor& y) {
  return y.narrow(1, part.begin, part.b.rows);
}

// Returns the rows in the group's A that belong to one adapter.
ParamRef a_of(const AdapterRefs& refs, const Part& part) {
  return {.offset = refs.a.offset + part.first * refs.a.columns,
          .rows = part.b.columns,
          .columns = refs.a.columns,
          .trained = refs.a.trained};
}

void multiply_by_scales(const AdapterRefs& refs, const at::Tensor& products) {
  const double first = refs.parts.front().scale;
  const bool equal = std::all_of(refs.parts.begin(), refs.parts.end(),
                                 [&](const Part& part) { return part.scale == first; });
  if (equal) {
    if (first != 1) products.mul_(first);
    return;
  }
  for (const auto& part : refs.parts) ranks_of(part, products).mul_(part.scale);
}

at::Tensor memory_like(const AdapterDropout& dropout, const at::Tensor& x) {
  return dropout.memory.narrow(0, 0, x.numel()).view(x.sizes());
}

// Returns `x` after the adapter's dropout.
at::Tensor dropped(const AdapterDropout& d, const Part& part, const at::Tensor& x) {
  const at::Tensor result = memory_like(d, x);
  dropout(x, d.token_keys, d.probability, d.seed, part.number, result, 0.0);
  return result;
}

}  // namespace

void adapter_products(const AdapterRefs& refs, const PlaceWeights& weights,
                      const AdapterDropout& dropout, const at::Tensor& x,
                      const at::Tensor& products) {
  if (refs.empty()) return;
  if (dropout.probability == 0) {
    gemm(x, refs.a.view(weights), products, false, true, 0.0);
  } else {
    for (const auto& part : refs.parts) {
      gemm(dropped(dropout, part, x), a_of(refs, part).view(weights), ranks_of(part, products),
           false, true, 0.0);
    }
  }
  multiply_by_scales(refs, products);
}

void add_adapters(const AdapterRefs& refs, const PlaceWeights& weights, const at::Tensor& products,
                  const at::Tensor& y) {
  for (const auto& part : refs.parts) {
    gemm(ranks_of(part, products), part.b.view(weights), columns_of(part, y), false, true, 1.0);
  }
}

void adapter_weights_backward(const AdapterRefs& refs, const PlaceWeights& weights,
                              const AdapterDropout& dropout, const at::Tensor& x,
                              const at::Tensor& products, const at::Tensor& grad_y,
                              const at::Tensor& grad_products, UnitGradient* gradient) {
  if (refs.empty()) return;
  for (const auto& part : refs.parts) {
    const at::Tensor grad = columns_of(part, grad_y);
    gemm(grad, ranks_of(part, products), part.b.view(*gradient), true, false,
         gradient->begin_write(part.b.offset));
    gemm(grad, part.b.view(weights), ranks_of(part, grad_products), false, false, 0.0);
  }
  adapter_a_backward(refs, dropout, x, grad_products, gradient);
}

void adapter_a_backward(const AdapterRefs& refs, const AdapterDropout& dropout, const at::Tensor& x,
                        const at::Tensor& grad_products, UnitGradient* gradient) {
  multiply_by_scales(refs, grad_products);
  const auto accumulate = [&](const at::Tensor& grad, const at::Tensor& input, const ParamRef& a) {
    gemm(grad, input, a.view(*gradient), true, false, gradient->begin_write(a.offset));
  };
  if (dropout.probability == 0) return accumulate(grad_products, x, refs.a);
  for (const auto& part : refs.parts) {
    accumulate(ranks_of(part, grad_products), dropped(dropout, part, x), a_of(refs, part));
  }
}

void adapter_input_backward(const AdapterRefs& refs, const PlaceWeights& weights,
                            const AdapterDropout& d, const at::Tensor& grad_products,
                            const at::Tensor& grad_x) {
  if (refs.empty()) return;
  if (d.probability == 0) {
    gemm(grad_products, refs.a.view(weights), grad_x, false, false, 1.0);
    return;
  }
  const at::Tensor grad = memory_like(d, grad_x);
  for (const auto& part : refs.parts) {
    gemm(ranks_of(part, grad_products), a_of(refs, part).view(weights), grad, false, false, 0.0);
    dropout(grad, d.token_keys, d.probability, d.seed, part.number, grad_x, 1.0);
  }
}

}  // namespace fastsft
