#include "chat/labeller.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "core/error.h"

namespace fastsft {
namespace {

constexpr int kMaxThreads = 8;
constexpr size_t kGrain = 16;  // conversations that a thread takes at a time

int choose_threads(int wanted) {
  if (wanted > 0) return wanted;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

// Calls `body(begin, end)` for parts of [0, count) on several threads and waits. The first exception
// is thrown again here.
void run_in_parts(size_t count, int num_threads, const std::function<void(size_t, size_t)>& body) {
  std::atomic<size_t> next = 0;
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (size_t begin; (begin = next.fetch_add(kGrain)) < count;) {
        body(begin, std::min(begin + kGrain, count));
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  const size_t parts = (count + kGrain - 1) / kGrain;
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < std::min<size_t>(num_threads, parts); ++i) threads.emplace_back(work);
  work();
  threads.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace

Labeller::Labeller(const Tokenizer& tokenizer, const ChatTemplate& chat_template, int64_t max_length,
                   int num_threads)
    : tokenizer_(tokenizer),
      chat_template_(chat_template),
      max_length_(max_length),
      num_threads_(choose_threads(num_threads)) {
  require(chat_template.has_fastchat_labels,
          "FastChat's label arithmetic is not defined for this template; expected vicuna_v1.1");
  require(max_length > 0 && max_length < INT32_MAX / 2, "model_max_length must be positive, got ",
          max_length);
  require(tokenizer.named().pad >= 0,
          "the tokenizer has no unk token to pad with, as FastChat's labels need");
}

LabelledRecord Labeller::label_one(const Conversation& conversation, int64_t number,
                                   Transcript& transcript) const {
  LabelledRecord record;
  record.name = conversation.id.empty() ? concat("record ", number) : printable(conversation.id);
  Turns turns;
  if (auto fault = check_conversation(conversation, turns)) {
    fault->record = number;
    fault->id = conversation.id;
    record.faults.push_back(std::move(*fault));
    return record;
  }
  render_template(chat_template_, turns, transcript);
  record.labels = label_transcript(tokenizer_, chat_template_, transcript, max_length_);
  if (record.labels.dropped) {
    record.remarks = {find_drop_reason(chat_template_, turns)};
  } else {
    record.remarks = find_notes(tokenizer_, turns, record.labels);
  }
  return record;
}

std::vector<LabelledRecord> Labeller::label(const std::vector<Conversation>& conversations,
                                            int64_t first_record) const {
  std::vector<LabelledRecord> records(conversations.size());
  run_in_parts(conversations.size(), num_threads_, [&](size_t begin, size_t end) {
    Transcript transcript;
    for (size_t i = begin; i < end; ++i) {
      records[i] = label_one(conversations[i], first_record + static_cast<int64_t>(i), transcript);
    }
  });
  return records;
}

}  // namespace fastsft
