// torch's flash attention by its formulas, in float32. Calls that the product does not make and
// operands that the kernels would refuse are errors.
#include "aten/flash_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/tensors.h"

namespace fake_device {
namespace {

// Rows of [tokens, heads, head size].
void check_operand(const at::Tensor& rows, const char* name) {
  TORCH_CHECK(rows.dim() == 3 && rows.stride(2) == 1, "flash attention: ", name,
              " has no dense heads");
  TORCH_CHECK(rows.scalar_type() == at::kHalf || rows.scalar_type() == at::kBFloat16,
              "flash attention: ", name, " has dtype ", rows.scalar_type());
  TORCH_CHECK(rows.size(2) % 8 == 0 && rows.size(2) <= 256, "flash attention: head size ",
              rows.size(2));
  const bool aligned = reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0 &&
                       rows.stride(0) % 8 == 0 && rows.stride(1) % 8 == 0;
  TORCH_CHECK(aligned, "flash attention: ", name, " is not aligned to 16 bytes");
}

struct Settings {
  double scale;
  std::optional<int64_t> window;  // keys to the left that a query sees
  int64_t longest;

  // [n, n], true for the keys that a query sees.
  at::Tensor visible(int64_t n) const {
    at::Tensor mask = at::ones({n, n}, at::kBool).tril();
    if (window && *window >= 0) mask = mask.logical_and(at::ones({n, n}, at::kBool).triu(-*window));
    return mask;
  }
  at::Tensor scores(const at::Tensor& query, const at::Tensor& key) const {
    const at::Tensor products = at::matmul(query, key.transpose(1, 2)) * scale;
    return products.masked_fill(visible(query.size(1)).logical_not(), -INFINITY);
  }
};

Settings settings_of(const std::optional<double>& scale, const std::optional<c10::SymInt>& left,
                     const std::optional<c10::SymInt>& right, const c10::SymInt& longest,
                     double dropout, bool causal) {
  TORCH_CHECK(scale && dropout == 0 && causal && (!right || *right == 0 || *right == -1),
              "flash attention: the product does not make this call");
  const auto window = left ? std::optional<int64_t>(left->expect_int()) : std::nullopt;
  return {*scale, window, longest.expect_int()};
}

// Calls visit(first token, number of tokens) for each conversation; `bounds` [conversations + 1].
template <typename Visit>
void for_each_conversation(const at::Tensor& bounds, int64_t longest, const Visit& visit) {
  const auto* begin = bounds.const_data_ptr<int32_t>();
  for (int64_t i = 0; i + 1 < bounds.numel(); ++i) {
    const int64_t n = begin[i + 1] - begin[i];
    TORCH_CHECK(n >= 0 && n <= longest, "flash attention: a conversation of ", n,
                " tokens, the longest has ", longest);
    if (n > 0) visit(begin[i], n);
  }
}

// Tokens [at, at + n) as [heads, n, head size] in float32, each head `repeat` times.
at::Tensor heads(const at::Tensor& rows, int64_t at, int64_t n, int64_t repeat = 1) {
  const at::Tensor wide = rows.narrow(0, at, n).to(at::kFloat).transpose(0, 1);
  return repeat == 1 ? wide.contiguous() : wide.repeat_interleave(repeat, 0);
}

Ranges ranges_of(std::initializer_list<at::Tensor> read,
                 std::initializer_list<at::Tensor> written) {
  Ranges ranges;
  for (const at::Tensor& each : read) ranges.push_back(range_of(each, false));
  for (const at::Tensor& each : written) ranges.push_back(range_of(each, true));
  return ranges;
}

using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const std::optional<at::Tensor>& bounds, const std::optional<at::Tensor>&,
                c10::SymInt longest, c10::SymInt, double dropout, bool causal, bool,
                std::optional<double> scale, std::optional<c10::SymInt> left,
                std::optional<c10::SymInt> right, const std::optional<at::Tensor>&,
                const std::optional<at::Tensor>&) {
  TORCH_CHECK(bounds, "flash attention: expected the bounds of conversations");
  const Settings settings = settings_of(scale, left, right, longest, dropout, causal);
  check_operand(q, "query");
  check_operand(k, "key");
  check_operand(v, "value");
  const at::Tensor out = at::empty(q.sizes(), q.options());
  const at::Tensor lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  enqueue(current_stream(), "flash attention", ranges_of({q, k, v, *bounds}, {out, lse}),
          [q = cpu_view(q), k = cpu_view(k), v = cpu_view(v), bounds = cpu_view(*bounds),
           out = cpu_view(out), lse = cpu_view(lse), settings] {
            const at::AutoDispatchBelowADInplaceOrView guard;
            const int64_t repeat = q.size(1) / k.size(1);
            for_each_conversation(bounds, settings.longest, [&](int64_t at, int64_t n) {
              const at::Tensor scores = settings.scores(heads(q, at, n), heads(k, at, n, repeat));
              const at::Tensor sums = scores.logsumexp(2);
              lse.narrow(1, at, n).copy_(sums);
              // The kernel multiplies probabilities of the operands' dtype.
              const at::Tensor p =
                  (scores - sums.unsqueeze(2)).exp().to(q.scalar_type()).to(at::kFloat);
              out.narrow(0, at, n).copy_(at::matmul(p, heads(v, at, n, repeat)).transpose(0, 1));
            });
            return true;
          });
  const at::TensorOptions seeds = q.options().dtype(at::kUInt64);
  return {out, lse, at::empty({2}, seeds), at::empty({}, seeds), at::empty({0}, q.options())};
}

Backward backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                  const at::Tensor& bounds, const at::Tensor&, c10::SymInt longest, c10::SymInt,
                  double dropout, bool causal, const at::Tensor&, const at::Tensor&,
                  std::optional<double> scale, std::optional<c10::SymInt> left,
                  std::optional<c10::SymInt> right) {
  const Settings settings = settings_of(scale, left, right, longest, dropout, causal);
  check_operand(q, "query");
  check_operand(k, "key");
  check_operand(v, "value");
  check_operand(grad, "gradient");
  const at::Tensor dq = at::empty(q.sizes(), q.options());
  const at::Tensor dk = at::empty(k.sizes(), k.options());
  const at::Tensor dv = at::empty(v.sizes(), v.options());
  enqueue(current_stream(), "flash attention backward",
          ranges_of({grad, q, k, v, out, lse, bounds}, {dq, dk, dv}),
          [grad = cpu_view(grad), q = cpu_view(q), k = cpu_view(k), v = cpu_view(v),
           out = cpu_view(out), lse = cpu_view(lse), bounds = cpu_view(bounds), dq = cpu_view(dq),
           dk = cpu_view(dk), dv = cpu_view(dv), settings] {
            const at::AutoDispatchBelowADInplaceOrView guard;
            const int64_t key_heads = k.size(1), repeat = q.size(1) / key_heads;
            const auto summed = [&](const at::Tensor& t) {  // over the query heads of a key head
              return t.view({key_heads, repeat, t.size(1), t.size(2)}).sum(1).transpose(0, 1);
            };
            for_each_conversation(bounds, settings.longest, [&](int64_t at, int64_t n) {
              const at::Tensor query = heads(q, at, n), key = heads(k, at, n, repeat);
              const at::Tensor g = heads(grad, at, n);
              const at::Tensor sums = lse.narrow(1, at, n).unsqueeze(2);
              const at::Tensor p = (settings.scores(query, key) - sums).exp();
              const at::Tensor dp = at::matmul(g, heads(v, at, n, repeat).transpose(1, 2));
              const at::Tensor rest = (g * heads(out, at, n)).sum(2, true);
              const at::Tensor ds = p * (dp - rest) * settings.scale;
              dq.narrow(0, at, n).copy_(at::matmul(ds, key).transpose(0, 1));
              dk.narrow(0, at, n).copy_(summed(at::matmul(ds.transpose(1, 2), query)));
              dv.narrow(0, at, n).copy_(summed(at::matmul(p.transpose(1, 2), g)));
            });
            return true;
          });
  return {dq, dk, dv};
}

}  // namespace

void replace_flash_attention(torch::Library& library) {
  library.impl("_flash_attention_forward", &forward);
  library.impl("_flash_attention_backward", &backward);
}

}  // namespace fake_device
