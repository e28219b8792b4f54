#pragma once

#include <initializer_list>
#include <string>

#include "chat/conversation.h"

namespace fastsft {

// Parts of conversations that are made of fields of their own.

// A field's value and where it begins in its file.
struct PlainField {
  Value value;
  int64_t byte = 0;

  // As far as a table with null for what a record does not have means it.
  bool is_set() const {
    return value.kind != ValueKind::kMissing && value.kind != ValueKind::kNull;
  }
};

// A message of FastChat's role "human" or "gpt".
Message plain_message(const char* role, PlainField field, const char* name);

// The record has no conversation: `reason` is for people.
void refuse_fields(Conversation& record, std::string reason);

// Makes `record` one of fields of their own, with the messages it has.
void settle_fields(Conversation& record, RecordShape shape = RecordShape::kFields);

}  // namespace fastsft
