#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/conversation.h"
#include "core/json_scanner.h"
#include "core/registry.h"

namespace fastsft {

// The properties of a record's field that identify its format. A null field counts as missing.
struct FieldSketch {
  std::string name;
  ValueKind kind = ValueKind::kMissing;
  std::optional<MessageNames> messages;  // of a list of messages
  bool lists_objects = false;            // by its first item
  bool awaits_reply = false;             // the last message is the user's, or a tool's
  bool ends_with_reply = false;          // the last message is the assistant's
  bool holds_reply = false;              // a message is the assistant's
  bool is_nothing = false;               // an empty text or list
  bool is_bit = false;                   // 0 or 1, also as text
};

struct RecordSketch {
  std::vector<FieldSketch> fields;

  // Null where there is none.
  const FieldSketch* find(const std::string& name) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }
};

// The first few names of fields that have a value but are not used, each once.
class UnusedFields {
 public:
  // Skips the next value of `scanner`.
  void skip(const std::string& prefix, const std::string& name, JsonScanner& scanner);
  void add(const std::string& name);
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

// Turns fields of records into conversations, one record at a time.
class FieldReader {
 public:
  explicit FieldReader(UnusedFields& unused) : unused_(unused) {}
  virtual ~FieldReader() = default;
  // Called before the first field of a record. The record before may have ended early, at a fault.
  virtual void begin() {}
  // Reads the next value of `scanner`, which belongs to the field `name`. Returns false, without
  // reading, if the format does not use the field.
  virtual bool read(const std::string& name, JsonScanner& scanner, Conversation& record) = 0;
  // Called after the last field of a record.
  virtual void finish(Conversation&) {}

 protected:
  UnusedFields& unused_;
};

// A data format: which records are of it, and how they become conversations. A new format is one
// new file in formats/ that registers itself.
struct DataFormat {
  std::string title;   // "Alpaca"
  std::string fields;  // "instruction, output and, where there are, input, history, system"
  int rank = 0;        // where records are of two formats, that of the lower rank
  // The fields it may use, whatever their type. Lists of messages need not be among them.
  std::vector<std::string> names{};
  // Of a record of this format the name of its list of messages, or the names of its fields where
  // there are several of them, "" for the usual ones; null for another record.
  std::optional<std::string> (*match)(const RecordSketch&) = nullptr;
  // Of a record that matches: it may be meant otherwise, and is of this format only where
  // --data_format says so.
  bool (*is_doubtful)(const RecordSketch&) = nullptr;
  std::unique_ptr<FieldReader> (*make_reader)(const std::string& column,
                                              UnusedFields& unused) = nullptr;
};

struct DataFormatTag {
  static constexpr const char* kNoun = "data format";
};
using DataFormats = Registry<DataFormatTag, DataFormat>;

// The format of a file.
struct FormatChoice {
  std::string name = "sharegpt";
  std::string column{};

  const DataFormat& format() const { return DataFormats::instance().get(name); }
  // "Alpaca", "messages (dialogue)".
  std::string describe() const;
  bool operator==(const FormatChoice&) const = default;
};

// --data_format for "as the records say".
inline constexpr const char* kAutoFormat = "auto";

// Throws std::invalid_argument for a name that is neither a format nor "auto".
void check_format_name(const std::string& name);

// The value that comes next, which is read: the fields of an object, none of anything else.
RecordSketch sketch_record(JsonScanner& scanner);

// The format of a record; null when it is of none. `name`: only this format, or any.
std::optional<FormatChoice> match_format(const RecordSketch& record, const std::string& name);

}  // namespace fastsft
