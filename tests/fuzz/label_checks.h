#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "chat/explain.h"
#include "chat/labeller.h"
#include "core/error.h"
#include "core/utf8.h"
#include "data/token_dataset.h"
#include "fuzz_check.h"

namespace fastsft::fuzz {

inline bool is_learned(const Example& example, size_t position) {
  const auto at = static_cast<int32_t>(position);
  return std::ranges::any_of(
      example.learned, [&](const TokenSpan& span) { return span.begin <= at && at < span.end; });
}

inline bool is_same(const LabelledRecord& a, const LabelledRecord& b) {
  const auto told = [](const LabelledRecord& record) {
    std::string text = record.name;
    for (const RecordError& fault : record.faults) text += "\n" + fault.what();
    for (const RecordIssue& finding : record.findings) {
      text += concat("\n", name_of(finding.remark), " ", name_of(finding.action), " ",
                     finding.message, " ", finding.reason);
    }
    return text;
  };
  return told(a) == told(b) && a.outcome == b.outcome && a.is_cut_off == b.is_cut_off &&
         a.is_later_reply == b.is_later_reply && a.labels.dropped == b.labels.dropped &&
         a.labels.truncated == b.labels.truncated && a.labels.example.ids == b.labels.example.ids &&
         a.labels.example.learned == b.labels.example.learned;
}

// Aborts unless every error and every issue has its record's name and an existing message.
inline void check_told(const LabelledRecord& record, const Conversation& conversation,
                       const LabelOptions& options) {
  const auto num_messages = static_cast<int64_t>(conversation.messages.size());
  check(record.faults.size() <= 1 && !record.name.empty());
  for (const RecordError& fault : record.faults) {
    check(fault.what().starts_with(concat("record ", conversation.number)));
    check(fault.message < std::max<int64_t>(num_messages, 1) && !fault.reason.empty());
    check(fault.always_stops || options.on_bad_sample == OnBadSample::kError);
    check(is_utf8(fault.what()));
  }
  for (const RecordIssue& finding : record.findings) {
    check(finding.message < std::max<int64_t>(num_messages, 1) && is_utf8(finding.reason));
    const bool stops = options.on_bad_sample == OnBadSample::kError;
    check(!stops || !is_bad_sample(finding.remark) || !record.faults.empty());
  }
}

// Aborts unless the labels of a row are ids or -100, and the row has the size that it may have.
inline void check_row(const LabelledRecord& record, const LabelOptions& options,
                      const Tokenizer& tokenizer) {
  const Example& example = record.labels.example;
  if (!record.has_row()) {
    check(example.ids.empty() || !record.faults.empty());
    return;
  }
  const auto size = static_cast<int64_t>(example.ids.size());
  check(size <= options.max_length);
  check(options.mask_policy == MaskPolicy::kFastchat || !example.learned.empty());
  TokenDataset dataset;
  dataset.append(example);
  const std::vector<int32_t> labels = dataset.labels(0);
  check(labels.size() == example.ids.size() && dataset.num_tokens() == size);
  for (size_t i = 0; i < labels.size(); ++i) {
    check(example.ids[i] >= 0 && example.ids[i] < tokenizer.vocab_size());
    check(labels[i] == (is_learned(example, i) ? example.ids[i] : kIgnoredLabel));
  }
}

// Aborts unless the ids spell the transcript from its beginning, and exactly the tokens that end in
// a reply are learned.
inline void check_transcript(const Explanation& seen, const Tokenizer& tokenizer) {
  const Example& example = seen.record.labels.example;
  const Transcript& transcript = seen.transcript;
  const size_t front = transcript.bos_in_front && !example.ids.empty();
  uint32_t at = 0;
  for (size_t i = front; i < example.ids.size(); ++i) {
    const std::string text = tokenizer.token_text(example.ids[i]);
    check(transcript.text.compare(at, text.size(), text) == 0);
    at += static_cast<uint32_t>(text.size());
    const auto holds = [&](const std::vector<ByteSpan>& spans) {
      return std::ranges::any_of(
          spans, [&](const ByteSpan& span) { return span.begin < at && at <= span.end; });
    };
    const bool is_reply = holds(transcript.learned()) && !holds(transcript.left_out);
    check(is_learned(example, i) == is_reply);
  }
  if (!seen.record.labels.truncated) check(at == transcript.text.size());
  check(front == 0 || !is_learned(example, 0));
}

// Aborts unless all learned data is a text of a reply that may be learned.
inline void check_learned_texts(const Explanation& seen, const Conversation& conversation) {
  for (const Segment& segment : seen.transcript.segments) {
    if (!segment.is_data || !segment.is_learned) continue;
    const std::string_view text =
        std::string_view(seen.transcript.text)
            .substr(segment.bytes.begin, segment.bytes.end - segment.bytes.begin);
    check(std::ranges::any_of(conversation.messages, [&](const Message& message) {
      const bool is_marked = message.train != ValueKind::kMissing;
      const ValueKind mark = is_marked ? message.train : conversation.train;
      return mark != ValueKind::kFalse && !message.is_context &&
             replace_invalid_utf8(message.value.text).find(text) != std::string::npos;
    }));
  }
}

// Aborts unless `narrow` learns a part of what `wide` learns of the same record. Of records with an
// error nothing is learned.
inline void check_narrower(const LabelledRecord& narrow, const LabelledRecord& wide) {
  const Example &less = narrow.labels.example, &more = wide.labels.example;
  if (!narrow.has_row() || !wide.faults.empty()) return;
  check(wide.has_row() && less.ids == more.ids);
  for (size_t i = 0; i < less.ids.size(); ++i) check(!is_learned(less, i) || is_learned(more, i));
}

}  // namespace fastsft::fuzz
