#pragma once

#include <string>

#include "data/token_dataset.h"

namespace fastsft {

// Receives labelled rows in order.
class LabelSink {
 public:
  virtual ~LabelSink() = default;
  virtual void add(const Example& example) = 0;
  // Receives --report_bad lines, each with its newline.
  virtual void add_bad_records(const std::string& lines) = 0;
};

// Stores labelled rows in memory.
class MemorySink : public LabelSink {
 public:
  void add(const Example& example) override { dataset.append(example); }
  void add_bad_records(const std::string& lines) override { bad_records += lines; }

  TokenDataset dataset;
  std::string bad_records;
};

}  // namespace fastsft
