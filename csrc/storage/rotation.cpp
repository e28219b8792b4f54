#include "storage/rotation.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "storage/atomic_directory.h"
#include "storage/manifest.h"
#include "storage/posix_place.h"

namespace fastsft {
namespace {

constexpr std::string_view kCheckpointPrefix = "checkpoint-";

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kCheckpointPrefix) || name.size() == kCheckpointPrefix.size())
    return std::nullopt;
  const char* begin = name.data() + kCheckpointPrefix.size();
  const char* end = name.data() + name.size();
  int64_t step = 0;
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stop != end || *begin == '-') return std::nullopt;
  return step;
}

}  // namespace

std::vector<CheckpointEntry> list_checkpoints(FileSystem& file_system,
                                              const std::string& output_directory, Links links) {
  std::vector<CheckpointEntry> checkpoints;
  for (const auto& entry : file_system.list(output_directory)) {
    const auto step = step_of(entry.name);
    const bool link = links == Links::kListed &&
                      path_kind(join_path(output_directory, entry.name)) == PathKind::kLink;
    if (step && (entry.is_directory || link)) checkpoints.push_back({entry.name, *step});
  }
  std::stable_sort(checkpoints.begin(), checkpoints.end(),
                   [](const auto& left, const auto& right) { return left.step < right.step; });
  return checkpoints;
}

std::vector<CheckpointEntry> plan_rotation(const std::vector<CheckpointEntry>& complete, int limit,
                                           const std::vector<std::string>& kept) {
  if (limit <= 0 || complete.empty()) return {};
  std::vector<CheckpointEntry> candidates;
  for (size_t i = 0; i + 1 < complete.size(); ++i) {
    const bool keep = std::find(kept.begin(), kept.end(), complete[i].name) != kept.end();
    if (!keep) candidates.push_back(complete[i]);
  }
  const size_t keep = static_cast<size_t>(limit);
  const size_t surplus = complete.size() > keep ? complete.size() - keep : 0;
  candidates.resize(std::min(candidates.size(), surplus));
  return candidates;
}

std::map<std::string, std::string> rotate_checkpoints(FileSystem& file_system,
                                                      const std::string& output_directory,
                                                      int limit,
                                                      const std::vector<std::string>& kept,
                                                      Unremoved* unremoved) {
  std::vector<CheckpointEntry> complete;
  for (const auto& entry : list_checkpoints(file_system, output_directory)) {
    const std::string path = join_path(output_directory, entry.name);
    if (verify_directory(path, VerifyDepth::kSizes).empty()) complete.push_back(entry);
  }
  std::map<std::string, std::string> deleted;
  for (const auto& entry : plan_rotation(complete, limit, kept)) {
    const std::string path = join_path(output_directory, entry.name);
    or_unremoved(unremoved, [&] { deleted[entry.name] = delete_directory(file_system, path); });
  }
  return deleted;
}

}  // namespace fastsft
