#include "fibers/reports.h"

#include <map>

namespace cuda_on_cpu {
namespace {

std::map<std::string, int> reports;
std::string kernel;

}  // namespace

void set_kernel(const std::string& name) { kernel = name; }

void report(const std::string& text) { ++reports[kernel + ": " + text]; }

std::string text_of(const Where& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

std::string take_reports() {
  std::string all;
  for (const auto& [text, times] : reports) all += text + " (x" + std::to_string(times) + ")\n";
  reports.clear();
  return all;
}

}  // namespace cuda_on_cpu
