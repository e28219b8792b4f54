#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/conversation.h"
#include "core/json_scanner.h"
#include "core/registry.h"

namespace fastsft {

// A record's field, with the properties that identify the data format. A null field counts as
// missing.
struct FieldSketch {
  std::string name;
  ValueKind kind = ValueKind::kMissing;
  std::optional<MessageNames> messages;  // names in a list of messages; empty for other fields
  bool lists_objects = false;            // the list's first item is an object
  bool awaits_reply = false;             // the last message is from the user or a tool
  bool ends_with_reply = false;          // the last message is from the assistant
  bool holds_reply = false;              // some message is from the assistant
  bool is_nothing = false;               // an empty text or list
  bool is_bit = false;                   // 0 or 1, as a number or as text
};

// A record's fields, for the detection of its data format.
struct RecordSketch {
  std::vector<FieldSketch> fields;

  // Returns the field, or null if the field is missing or null.
  const FieldSketch* find(const std::string& name) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }
};

// A list of the first few fields that have a value but are not used. Each name is listed once.
class UnusedFields {
 public:
  // Skips the scanner's next value and lists the field `prefix` + `name` unless the value is null.
  void skip(const std::string& prefix, const std::string& name, JsonScanner& scanner);
  void add(const std::string& name);
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

// Turns records' fields into conversations, record by record.
class FieldReader {
 public:
  explicit FieldReader(UnusedFields& unused) : unused_(unused) {}
  virtual ~FieldReader() = default;
  // Begins a record. An error may have ended the previous record without a call to `finish`.
  virtual void begin() {}
  // Reads the scanner's next value, which belongs to the field `name`. Returns false, without
  // reading, if the format does not use the field.
  virtual bool read(const std::string& name, JsonScanner& scanner, Conversation& record) = 0;
  // Ends a record, after its last field.
  virtual void finish(Conversation&) {}

 protected:
  UnusedFields& unused_;
};

// A data format: how to recognise its records, and how to turn them into conversations. A new
// format is a new file in formats/, which registers itself.
struct DataFormat {
  std::string title;   // "Alpaca"
  std::string fields;  // "instruction, output and, where there are, input, history, system"
  int rank = 0;        // if a record matches two formats, the lower rank wins
  // All fields that the format may use, whatever their type. Message lists need not be named here.
  std::vector<std::string> names{};
  // Returns null if the record does not match. Otherwise returns the name of its message list, or
  // its field names if the format allows several; "" for the default names.
  std::optional<std::string> (*match)(const RecordSketch&) = nullptr;
  // True if a matching record may mean something else. The record is then read in this format only
  // if --data_format names the format.
  bool (*is_doubtful)(const RecordSketch&) = nullptr;
  std::unique_ptr<FieldReader> (*make_reader)(const std::string& column,
                                              UnusedFields& unused) = nullptr;
};

struct DataFormatTag {
  static constexpr const char* kNoun = "data format";
};
using DataFormats = Registry<DataFormatTag, DataFormat>;

// A file's data format.
struct FormatChoice {
  std::string name = "sharegpt";
  std::string column{};

  const DataFormat& format() const { return DataFormats::instance().get(name); }
  // Returns a description for people, such as "Alpaca" or "messages (dialogue)".
  std::string describe() const;
  bool operator==(const FormatChoice&) const = default;
};

// The value of --data_format that asks for detection from the records.
inline constexpr const char* kAutoFormat = "auto";

// Throws std::invalid_argument if `name` is neither a format nor "auto".
void check_format_name(const std::string& name);

// Reads the scanner's next value and returns its fields. Returns no fields if the value is not an
// object.
RecordSketch sketch_record(JsonScanner& scanner);

// Returns the record's format, or null if no format matches. `name`: the only format to try, or
// "auto" for all.
std::optional<FormatChoice> match_format(const RecordSketch& record, const std::string& name);

}  // namespace fastsft
