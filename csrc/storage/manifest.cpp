#include "storage/manifest.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "storage/byte_source.h"
#include "storage/crc32c.h"
#include "storage/file_name.h"

namespace fastsft {
namespace {

constexpr const char* kOwnChecksum = "manifest_crc32c";
constexpr uint64_t kMaxManifestBytes = uint64_t{64} << 20;

std::string hex(uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

uint32_t checksum(const std::string& text) { return crc32c(std::as_bytes(std::span(text))); }

Manifest manifest_of(const Json& json, const std::string& where) {
  const int version = json.at("format_version").get<int>();
  require(version == kManifestVersion, where, ": format version ", version,
          "; this fastsft reads version ", kManifestVersion);
  Manifest manifest;
  manifest.step = json.at("step").get<int64_t>();
  manifest.world_size = json.at("world_size").get<int>();
  require(manifest.step >= 0, where, ": step: expected 0 or more, got ", manifest.step);
  require(manifest.world_size >= 1, where, ": world_size: expected 1 or more, got ",
          manifest.world_size);
  manifest.layout_hash = json.at("layout_hash").get<std::string>();
  for (const auto& listed : json.at("files")) {
    FileDigest& file = manifest.files.emplace_back();
    file.name = listed.at("name").get<std::string>();
    check_relative_name(file.name, where);
    file.size = listed.at("size").get<uint64_t>();
    file.crc32c =
        static_cast<uint32_t>(std::stoul(listed.at("crc32c").get<std::string>(), nullptr, 16));
  }
  return manifest;
}

std::string problem_with(const std::string& directory, const FileDigest& file, VerifyDepth depth) {
  if (!posix_file_system().exists(join_path(directory, file.name))) return "missing";
  const std::string path = nested_path_inside(directory, file.name, directory);
  const uint64_t size = FileBytes(path).size();
  if (size != file.size) return concat("expected ", file.size, " bytes, got ", size);
  if (depth == VerifyDepth::kSizes) return "";
  const uint32_t found = digest_file(path).crc32c;
  if (found == file.crc32c) return "";
  return concat("expected CRC32C ", hex(file.crc32c), ", got ", hex(found),
                "; its content was damaged");
}

void find_unlisted(const std::string& directory, const Manifest& manifest,
                   std::vector<std::string>& problems) {
  std::set<std::string> listed;
  for (const auto& file : manifest.files) listed.insert(file.name);
  for (const auto& entry : posix_file_system().list(directory)) {
    const bool weights =
        entry.name.ends_with(".safetensors") || entry.name.ends_with(".safetensors.index.json");
    if (weights && !listed.contains(entry.name)) {
      problems.push_back(entry.name + ": not in the manifest, but loaders could read it");
    }
  }
}

}  // namespace

std::string manifest_json(const Manifest& manifest) {
  Json files = Json::array();
  for (const auto& file : manifest.files) {
    files.push_back({{"name", file.name}, {"size", file.size}, {"crc32c", hex(file.crc32c)}});
  }
  Json json = {{"format_version", kManifestVersion},
               {"step", manifest.step},
               {"world_size", manifest.world_size},
               {"layout_hash", manifest.layout_hash},
               {"files", files}};
  json[kOwnChecksum] = hex(checksum(json.dump()));
  return json.dump(2) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  Manifest manifest;
  try {
    manifest = manifest_of(parse_json(text, where), where);
  } catch (const Json::exception& error) {
    throw_invalid(where, ": not a manifest: ", error.what());
    // std::stoul and `check_relative_name` throw subclasses
  } catch (const std::logic_error& error) {
    throw_invalid(where, ": not a manifest: ", error.what());
  }
  require(manifest_json(manifest) == text, where, ": its checksum does not match; it was damaged");
  return manifest;
}

Manifest read_manifest(const std::string& directory, const std::string& name) {
  const std::string path = join_path(directory, name);
  require(posix_file_system().exists(path), directory, ": no ", name,
          "; it is unfinished, or was not written by fastsft");
  const FileBytes file(path);
  require(file.size() <= kMaxManifestBytes, path, ": not a manifest: ", file.size(), " bytes");
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return parse_manifest(text, path);
}

std::vector<std::string> verify_directory(const std::string& directory, VerifyDepth depth) {
  std::vector<std::string> problems;
  try {
    const Manifest manifest = read_manifest(directory);
    for (const auto& file : manifest.files) {
      const std::string problem = problem_with(directory, file, depth);
      if (!problem.empty()) problems.push_back(file.name + ": " + problem);
    }
    find_unlisted(directory, manifest, problems);
  } catch (const std::exception& error) {
    problems.push_back(error.what());
  }
  return problems;
}

}  // namespace fastsft
