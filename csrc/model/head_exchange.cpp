#include "model/head_exchange.h"

#include "data/context_slice.h"

namespace fastsft {

HeadExchange::HeadExchange(Communicator& ranks, const ContextHeads& heads, int64_t tokens,
                           const at::Tensor& memory)
    : ranks_(ranks),
      heads_(heads),
      tokens_(tokens),
      own_tokens_(context_range(tokens, ranks.rank(), heads.ranks()).size()),
      memory_(memory) {}

int64_t HeadExchange::columns_of_rank(Columns columns) const {
  return columns == Columns::kQuery ? heads_.query_size() : heads_.qkv_size();
}

template <typename Work>
void HeadExchange::for_ranges(const at::Tensor& rows, int64_t rank, Columns columns,
                              const Work& work) const {
  const int64_t size = heads_.head_dim(), queries = heads_.num_heads() * heads_.ranks();
  const HeadRange query = heads_.query(rank), key = heads_.key_value(rank);
  const at::Tensor its = part(rank, columns_of_rank(columns));
  const auto range = [&](const at::Tensor& tensor, int64_t begin, int64_t count) {
    return tensor.narrow(1, begin * size, count * size);
  };
  work(range(rows, query.begin, query.count), range(its, 0, query.count), /*is_key=*/false);
  if (columns == Columns::kQuery) return;
  const int64_t keys = (rows.size(1) / size - queries) / 2;
  for (const int64_t kind : {0, 1}) {  // keys, values
    work(range(rows, queries + kind * keys + key.begin, key.count),
         range(its, query.count + kind * key.count, key.count), /*is_key=*/true);
  }
}

at::Tensor HeadExchange::part(int64_t rank, int64_t columns) const {
  const int64_t size = own_tokens_ * columns;
  return memory_.narrow(0, rank * size, size).view({own_tokens_, columns});
}

// With heads, the parts are the ranks' tokens, of this rank's columns.
std::vector<int64_t> HeadExchange::counts_by_tokens(int64_t columns) const {
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < heads_.ranks(); ++rank) {
    counts.push_back(context_range(tokens_, rank, heads_.ranks()).size() * columns);
  }
  return counts;
}

// With tokens, the parts are this rank's tokens, of the ranks' columns.
std::vector<int64_t> HeadExchange::counts_by_heads(int64_t columns) const {
  return std::vector<int64_t>(static_cast<size_t>(heads_.ranks()), own_tokens_ * columns);
}

void HeadExchange::to_heads(const at::Tensor& rows, const at::Tensor& heads, Columns columns,
                            const std::string& what) const {
  if (tokens_ == 0) return;  // on all ranks
  const int64_t width = columns_of_rank(columns);
  for (int64_t rank = 0; rank < heads_.ranks(); ++rank) {
    for_ranges(rows, rank, columns,
               [](const at::Tensor& from, const at::Tensor& to, bool) { to.copy_(from); });
  }
  const at::Tensor sent = memory_.narrow(0, 0, own_tokens_ * width * heads_.ranks());
  ranks_.all_to_all(heads.view({-1}), counts_by_tokens(width), sent, counts_by_heads(width), what)
      ->wait();
}

void HeadExchange::to_tokens(const at::Tensor& heads, const at::Tensor& rows, Columns columns,
                             const std::string& what) const {
  if (tokens_ == 0) return;
  const int64_t width = columns_of_rank(columns);
  const at::Tensor received = memory_.narrow(0, 0, own_tokens_ * width * heads_.ranks());
  ranks_
      .all_to_all(received, counts_by_heads(width), heads.view({-1}), counts_by_tokens(width), what)
      ->wait();
  for (int64_t rank = 0; rank < heads_.ranks(); ++rank) {
    const bool is_first = rank % heads_.sharers() == 0;
    for_ranges(rows, rank, columns, [&](const at::Tensor& to, const at::Tensor& from, bool is_key) {
      if (is_key && !is_first) {
        to.add_(from);
      } else {
        to.copy_(from);
      }
    });
  }
}

}  // namespace fastsft
