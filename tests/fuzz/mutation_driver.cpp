// Runs a libFuzzer target without libFuzzer: every corpus file once, then mutations of these files
// until the time is over. The same seed gives the same inputs.
//
// usage: fuzz_x [-seconds=60] [-seed=1] [-max_len=65536] FOLDER_OR_FILE...
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

struct Options {
  double seconds = 0;
  uint64_t seed = 1;
  size_t max_size = 1 << 16;
  std::vector<std::string> paths;
};

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const auto value = [&] { return std::string(arg.substr(arg.find('=') + 1)); };
    if (arg.starts_with("-seconds=")) {
      options.seconds = std::stod(value());
    } else if (arg.starts_with("-seed=")) {
      options.seed = std::stoull(value());
    } else if (arg.starts_with("-max_len=")) {
      options.max_size = std::stoull(value());
    } else {
      options.paths.emplace_back(arg);
    }
  }
  return options;
}

Input read_input(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Input(std::istreambuf_iterator<char>(file), {});
}

std::vector<Input> read_corpus(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> corpus;
  for (const auto& file : files) corpus.push_back(read_input(file));
  return corpus;
}

class Mutator {
 public:
  Mutator(std::vector<Input> corpus, uint64_t seed, size_t max_size)
      : corpus_(std::move(corpus)), random_(seed), max_size_(max_size) {
    if (corpus_.empty()) corpus_.emplace_back();
  }

  Input next() {
    Input input = pick();
    for (size_t i = 0, count = 1 + below(4); i < count; ++i) mutate(input);
    if (input.size() > max_size_) input.resize(max_size_);
    return input;
  }

 private:
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  const Input& pick() { return corpus_[below(corpus_.size())]; }
  uint8_t byte() {
    static constexpr std::string_view kTelling = "\"'{}[]:,\\u0 \n\r\t\xC3\xED\xF4\xFF\x80-1e9<|>";
    return below(2) == 0 ? static_cast<uint8_t>(random_())
                         : static_cast<uint8_t>(kTelling[below(kTelling.size())]);
  }

  void mutate(Input& input) {
    const size_t at = below(input.size() + 1);
    const size_t size = below(std::min<size_t>(input.size() - at, 64) + 1);
    const auto begin = input.begin() + static_cast<ptrdiff_t>(at);
    switch (below(8)) {
      case 0:
        if (at < input.size()) input[at] = byte();
        break;
      case 1:
        input.insert(begin, byte());
        break;
      case 2:
        input.erase(begin, begin + static_cast<ptrdiff_t>(size));
        break;
      case 3: {
        const Input copy(begin, begin + static_cast<ptrdiff_t>(size));
        const auto to = static_cast<ptrdiff_t>(below(input.size() + 1));
        input.insert(input.begin() + to, copy.begin(), copy.end());
        break;
      }
      case 4: {
        const Input& other = pick();
        const size_t from = below(other.size() + 1);
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
        break;
      }
      case 5:
        if (at < input.size()) input[at] ^= static_cast<uint8_t>(1u << below(8));
        break;
      default:
        swap_text(input);
    }
  }

  // Replaces a text in quotes by such a text of another file, so that JSON stays JSON and gets
  // other keys, roles and values.
  void swap_text(Input& input) {
    const auto [begin, end] = find_text(input);
    const Input& other = pick();
    const auto [from, to] = find_text(other);
    if (begin == end || from == to) return;
    const Input text(other.begin() + from, other.begin() + to);
    input.erase(input.begin() + begin, input.begin() + end);
    input.insert(input.begin() + begin, text.begin(), text.end());
  }

  // Returns where a text in quotes begins and ends, quotes included; two equal places if there is
  // none after a drawn place.
  std::pair<ptrdiff_t, ptrdiff_t> find_text(const Input& input) {
    const auto drawn = input.begin() + static_cast<ptrdiff_t>(below(input.size() + 1));
    const auto first = std::find(drawn, input.end(), '"');
    const auto last = first == input.end() ? first : std::find(first + 1, input.end(), '"');
    if (last == input.end()) return {0, 0};
    return {first - input.begin(), last + 1 - input.begin()};
  }

  std::vector<Input> corpus_;
  std::mt19937_64 random_;
  size_t max_size_;
};

// Runs one input. Writes it to disk first, so that a crash leaves it behind.
void run(const Input& input) {
  static const char* kept = std::getenv("FUZZ_KEEP");
  if (kept != nullptr) {
    std::ofstream(kept, std::ios::binary)
        .write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
  }
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  const std::vector<Input> corpus = read_corpus(options.paths);
  for (const Input& input : corpus) run(input);
  Mutator mutator(corpus, options.seed, options.max_size);
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  size_t count = 0;
  for (; std::chrono::steady_clock::now() < end; ++count) run(mutator.next());
  std::printf("%zu files, %zu mutations, no finding\n", corpus.size(), count);
}
