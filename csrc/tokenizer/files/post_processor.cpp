#include "tokenizer/files/post_processor.h"

#include <string>

#include "core/error.h"
#include "tokenizer/files/not_native.h"

namespace fastsft {
namespace {

std::vector<int32_t> find_template_ids(const Json& section, const std::string& token) {
  std::vector<int32_t> ids;
  for (const Json& id : section.at("special_tokens").at(token).at("ids")) {
    require(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < INT32_MAX,
            "tokenizer.json: post_processor: expected the ids of \"", token, "\"");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

void add_template(const Json& section, AddedAround& around) {
  int num_texts = 0;
  for (const Json& item : section.at("single")) {
    if (item.contains("Sequence")) {
      ++num_texts;
      continue;
    }
    auto& side = num_texts == 0 ? around.before : around.after;
    const auto ids = find_template_ids(section, item.at("SpecialToken").at("id"));
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (num_texts != 1) throw NotNative("a post-processor template without exactly one text");
}

void add_processor(const Json& section, AddedAround& around) {
  if (section.is_null()) return;
  const auto type = section.at("type").get<std::string>();
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const Json& part : section.at("processors")) add_processor(part, around);
  } else if (type == "TemplateProcessing") {
    if (!around.before.empty() || !around.after.empty()) {
      throw NotNative("a post-processor with two templates");
    }
    add_template(section, around);
  } else {
    throw NotNative("the post-processor \"" + type + "\"");
  }
}

}  // namespace

AddedAround parse_post_processor(const Json& section) {
  AddedAround around;
  try {
    add_processor(section, around);
  } catch (const Json::exception& error) {
    throw_invalid("tokenizer.json: post_processor: a part is missing or has an unexpected type: ",
                  error.what());
  }
  return around;
}

}  // namespace fastsft
