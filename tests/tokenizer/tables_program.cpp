// The tokenizer's tables against plain ones: tables_program pairs|texts|self_merges|words. Exit
// status 1 and a line where they differ.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe/pair_merger.h"
#include "tokenizer/bpe/pair_table.h"
#include "tokenizer/bpe/single_token_proof.h"
#include "tokenizer/bpe/text_index.h"
#include "tokenizer/bpe/token_writer.h"
#include "tokenizer/bpe/word_batch.h"

namespace fastsft {
namespace {

std::mt19937 draw(0);

int32_t below(int32_t limit) { return static_cast<int32_t>(draw() % static_cast<uint32_t>(limit)); }

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("%s\n", what);
  std::exit(1);
}

bool is_same(PairTable::Join a, PairTable::Join b) {
  return a.rank == b.rank && (!a.exists() || a.id == b.id);
}

using Pairs = std::map<std::pair<int32_t, int32_t>, PairTable::Join>;

PairTable::Join find(const Pairs& pairs, int32_t left, int32_t right) {
  const auto found = pairs.find({left, right});
  return found == pairs.end() ? PairTable::Join{} : found->second;
}

// Ids close to both ends and to the square, so that pairs share parts and lie beside each other.
int32_t draw_id(int32_t first) {
  constexpr int32_t kLast = PairTable::kMaxIds - 1;
  switch (below(4)) {
    case 0:
      return below(40);
    case 1:
      return kLast - below(40);
    case 2:
      return std::min(first + below(300), kLast);
    default:
      return below(kLast + 1);
  }
}

void check_pairs(int32_t first, size_t room, int count) {
  PairTable table(room);
  Pairs plain;
  for (int i = 0; i < count; ++i) {
    const int32_t left = draw_id(first), right = draw_id(first);
    const uint32_t rank = i % 3 == 0 ? PairTable::kNone - 1 - below(3) : below(3);
    const PairTable::Join join{rank, draw_id(first)};
    if (i % 2 == 0) {
      table.put(left, right, join);
      plain[{left, right}] = join;
    } else {
      table.add(left, right, join);
      plain.emplace(std::pair(left, right), join);
    }
  }
  table.make_square(first);
  for (const auto& [pair, join] : plain) {
    check(is_same(table.find(pair.first, pair.second), join), "find: a pair that was put");
    check(is_same(table.find_near(pair.first, pair.second), join), "find_near: such a pair");
  }
  for (int i = 0; i < 20000; ++i) {
    const int32_t left = below(20) == 0 ? PairTable::kNothing : draw_id(first);
    const int32_t right = below(20) == 0 ? PairTable::kNothing : draw_id(first);
    check(is_same(table.find(left, right), find(plain, left, right)), "find: any pair");
    check(is_same(table.find_near(left, right), find(plain, left, right)), "find_near: any pair");
  }
}

void check_texts(size_t room) {
  TextIndex index(room, room);
  std::map<std::string, int32_t> plain;
  const auto draw_text = [] {
    std::string text(static_cast<size_t>(below(20)), '\0');
    for (char& byte : text) byte = static_cast<char>(below(3) == 0 ? below(256) : below(2));
    return text;
  };
  for (int32_t id = 0; id < 20000; ++id) {
    const std::string text = draw_text();
    check(index.add(text, id) == plain.emplace(text, id).second, "add: whether it is new");
  }
  for (const auto& [text, id] : plain) check(index.find(text) == id, "find: a text that was added");
  for (int i = 0; i < 20000; ++i) {
    const std::string text = draw_text();
    const auto found = plain.find(text);
    const int32_t id = found == plain.end() ? TextIndex::kMissing : found->second;
    check(index.find(text) == id, "find: any text");
  }
}

WordCache::Key key_of(std::string_view word) {
  return WordCache::make_key(word.data(), word.size());
}

void check_word_index(size_t room) {
  WordIndex index(room);
  std::map<std::string, int32_t> plain;
  const auto draw_word = [] {
    std::string word(static_cast<size_t>(1 + below(WordCache::kMaxWord)), '\0');
    for (char& byte : word) byte = static_cast<char>(below(3) == 0 ? below(256) : below(2));
    return word;
  };
  for (int32_t id = 0; id < 20000; ++id) {
    const std::string word = draw_word();
    index.add(key_of(word), id);
    plain.emplace(word, id);
  }
  for (int i = 0; i < 40000; ++i) {
    const std::string word = draw_word();
    const auto found = plain.find(word);
    const int32_t id = found == plain.end() ? WordIndex::kMissing : found->second;
    check(index.find(key_of(word), WordCache::hash_of(key_of(word))) == id, "a word's id");
  }
}

// Of the words "a", "aa", ... the index knows those of even size; some are in a batch twice.
void check_missing_words() {
  WordIndex index;
  for (size_t size = 2; size <= 14; size += 2) index.add(key_of(std::string(size, 'a')), 1);
  WordCache cache(64);
  CacheMisses missing;
  const std::string text(400, 'a');
  std::vector<uint32_t> ends;
  for (uint32_t size = 1, end = 0; ends.size() < 32; size = size % 17 + 1) {
    ends.push_back(end += size);
  }
  WordBatch batch;
  batch.load(text, 0, ends, cache);
  const auto others = missing.resolve(batch, index, cache);
  check(others.size() == 16, "the words that the index does not know");
  for (const uint32_t word : others) check(batch.word(word).size() % 2 == 1, "one that it knows");
  for (size_t size = 2; size <= 14; size += 2) {
    const auto key = key_of(std::string(size, 'a'));
    const WordCache::Entry* entry = cache.find(key, WordCache::hash_of(key));
    check(entry != nullptr && entry->tokens[0] == pack_token(1, size), "a word that was learned");
  }
  check(missing.resolve(batch, index, cache).size() == others.size(), "after many, all again");
  for (const uint32_t word : others) {
    if (cache.find(batch.key(word), batch.hash(word)) != nullptr) continue;
    cache.insert(batch.key(word), batch.hash(word), std::array<PackedToken, 1>{});
  }
  check(missing.resolve(batch, index, cache).empty(), "nothing is missing");
  WordCache empty(64);
  check(missing.resolve(batch, index, empty).empty(), "after none, not a look");
  for (int i = 0; i < 8; ++i) missing.count_one();
  check(missing.resolve(batch, index, empty).size() == others.size(), "after many met, all again");
}

// One best pair after the other.
std::vector<int32_t> merge_plainly(const Pairs& pairs, std::vector<int32_t> ids) {
  while (true) {
    PairTable::Join best;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const PairTable::Join join = find(pairs, ids[i], ids[i + 1]);
      if (join.exists() && join.rank < best.rank) {
        best = join;
        at = i;
      }
    }
    if (!best.exists()) return ids;
    ids[at] = best.id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

std::vector<int32_t> merge_natively(PairMerger& merger, const std::vector<int32_t>& symbols) {
  std::vector<WordToken> tokens;
  for (const int32_t symbol : symbols) tokens.push_back({symbol, 1});
  merger.merge(tokens);
  std::vector<int32_t> ids;
  for (const WordToken& token : tokens) ids.push_back(token.id);
  return ids;
}

struct Rule {
  int32_t left, right;
  PairTable::Join join;
};

// Tokens over two or three symbols, each text one token. Drawn ranks: many are equal, and parts may
// come after what they are parts of.
struct Vocabulary {
  std::vector<std::vector<int32_t>> symbols;  // by id
  std::vector<Rule> rules;
  Pairs pairs;
  int32_t num_symbols = 2 + below(2);
  bool is_trained = below(2) == 0;  // a rank a rule, in their order, as training makes them

  Vocabulary() {
    for (int32_t symbol = 0; symbol < num_symbols; ++symbol) symbols.push_back({symbol});
    const int32_t count = 2 + below(24), ranks = 1 + below(2 * count);
    for (int32_t i = 0; i < count; ++i) {
      add_rule(static_cast<uint32_t>(is_trained ? i : below(ranks)));
    }
    if (is_trained || below(2) == 0) return;
    std::ranges::stable_sort(rules, {}, [](const Rule& rule) { return rule.join.rank; });
  }

  void add_rule(uint32_t rank) {
    const int32_t left = below(static_cast<int32_t>(symbols.size()));
    const int32_t right = below(static_cast<int32_t>(symbols.size()));
    std::vector<int32_t> text = symbols[left];
    text.insert(text.end(), symbols[right].begin(), symbols[right].end());
    if (text.size() > 10 || pairs.contains({left, right})) return;
    const auto known = std::ranges::find(symbols, text);
    const auto id = static_cast<int32_t>(known - symbols.begin());
    if (known == symbols.end()) symbols.push_back(text);
    pairs[{left, right}] = {rank, id};
    rules.push_back({left, right, {rank, id}});
  }
};

// How many tokens are proven, and how many of two symbols or more merge to themselves.
std::pair<int, int> check_self_merges(const Vocabulary& vocabulary) {
  PairTable table;
  for (const auto& [pair, join] : vocabulary.pairs) table.put(pair.first, pair.second, join);
  table.make_square(0);
  SingleTokenProof proven(table, vocabulary.symbols.size());
  for (int32_t id = 0; id < vocabulary.num_symbols; ++id) proven.add_symbol(id);
  for (const auto& [left, right, join] : vocabulary.rules) proven.add(left, right, join);
  PairMerger merger(table);
  int num_proven = 0, num_true = 0;
  for (size_t id = 0; id < vocabulary.symbols.size(); ++id) {
    const std::vector<int32_t>& symbols = vocabulary.symbols[id];
    const std::vector<int32_t> merged = merge_plainly(vocabulary.pairs, symbols);
    check(merged == merge_natively(merger, symbols), "merge: the symbols of a token");
    const bool is_itself = merged == std::vector{static_cast<int32_t>(id)};
    check(is_itself || !proven.contains(static_cast<int32_t>(id)), "proven, but merged otherwise");
    num_proven += symbols.size() > 1 && proven.contains(static_cast<int32_t>(id));
    num_true += symbols.size() > 1 && is_itself;
  }
  for (const int32_t size : {2, 15, 16, 40, 62, 63, 100}) {
    std::vector<int32_t> symbols(static_cast<size_t>(size));
    for (int32_t& symbol : symbols) symbol = below(vocabulary.num_symbols + 1) - 1;  // -1: unknown
    check(merge_plainly(vocabulary.pairs, symbols) == merge_natively(merger, symbols),
          "merge: any symbols");
  }
  return {num_proven, num_true};
}

void check_all_self_merges() {
  int num_proven = 0, num_true = 0;
  for (int i = 0; i < 4000; ++i) {
    const Vocabulary vocabulary;
    const auto [proven, truly] = check_self_merges(vocabulary);
    if (!vocabulary.is_trained) continue;
    num_proven += proven;
    num_true += truly;
  }
  std::printf("%d of %d trained tokens that merge to themselves are proven\n", num_proven,
              num_true);
  check(4 * num_proven > 3 * num_true, "proven: not three in four of them");
}

// A token a byte, or one for all: more and fewer than fit into an entry.
std::vector<PackedToken> tokens_of(std::string_view word) {
  if (word.size() % 2 == 0) return {pack_token(static_cast<int32_t>(word.size()), word.size())};
  std::vector<PackedToken> tokens;
  for (const char byte : word) tokens.push_back(pack_token(static_cast<uint8_t>(byte), 1));
  return tokens;
}

// `text` ends where its memory does.
void check_batch(WordCache& cache, std::string_view text, size_t begin,
                 const std::vector<uint32_t>& ends) {
  std::vector<Token> found, expected;
  WordBatch batch;
  batch.load(text, begin, ends, cache);
  TokenWriter<Token> writer(found, static_cast<uint32_t>(begin));
  batch.write(cache, writer, [&](std::string_view word, const WordCache::Key& key, uint32_t hash) {
    const std::vector<PackedToken> tokens = tokens_of(word);
    writer.put(tokens);
    if (word.size() <= WordCache::kMaxWord) cache.insert(key, hash, tokens);
  });
  writer.flush();
  auto at = static_cast<uint32_t>(begin);
  for (size_t i = 0; i < ends.size(); ++i) {
    const size_t first = i == 0 ? begin : ends[i - 1];
    for (const PackedToken token : tokens_of(text.substr(first, ends[i] - first))) {
      expected.push_back({packed_id(token), at, at + packed_size(token)});
      at += packed_size(token);
    }
  }
  const auto is_equal = [](const Token& a, const Token& b) {
    return a.id == b.id && a.begin == b.begin && a.end == b.end;
  };
  check(std::ranges::equal(found, expected, is_equal), "a batch of words");
}

void check_words(size_t max_buckets) {
  WordCache cache(max_buckets);
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint32_t> ends;
    const auto begin = static_cast<size_t>(below(20));
    auto size = static_cast<uint32_t>(begin);
    for (int32_t i = 1 + below(WordBatch::kMaxWords); i > 0; --i) {
      ends.push_back(size += static_cast<uint32_t>(1 + below(below(8) == 0 ? 60 : 15)));
    }
    const auto text = std::make_unique<char[]>(size);
    for (uint32_t i = 0; i < size; ++i) text[i] = static_cast<char>(below(3) == 0 ? -1 : below(2));
    check_batch(cache, {text.get(), size}, begin, ends);
  }
}

}  // namespace
}  // namespace fastsft

int main(int count, char** arguments) {
  using namespace fastsft;
  const std::string_view what = count > 1 ? arguments[1] : "";
  if (what == "pairs") {
    for (const int32_t first : {0, 1000, PairTable::kMaxIds - 256}) {
      for (const size_t room : {0, 50'000}) check_pairs(first, room, 50'000);
    }
    for (int i = 0; i < 300; ++i) check_pairs(0, 0, i);
  } else if (what == "texts") {
    for (const size_t room : {0, 1, 30'000}) check_texts(room);
  } else if (what == "word_index") {
    for (const size_t room : {0, 1, 30'000}) check_word_index(room);
    check_missing_words();
  } else if (what == "self_merges") {
    check_all_self_merges();
  } else if (what == "words") {
    for (const size_t buckets : {1, 64, 1 << 14}) check_words(buckets);
  } else {
    check(false, "usage: tables_program pairs|texts|word_index|self_merges|words");
  }
  return 0;
}
