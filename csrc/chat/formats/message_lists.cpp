#include "chat/message_fields.h"

namespace fastsft {
namespace {

const bool kMessagesRegistered = DataFormats::instance().add(
    "messages",
    {.title = "messages",
     .fields = "a list of {\"role\", \"content\"}, as \"messages\", and, where there is, system",
     .rank = 1,
     .names = {"conversations", "messages", "system"},
     .match =
         [](const RecordSketch& record) {
           return find_message_list(record, MessageNames::kRoleContent);
         },
     .make_reader = [](const std::string& column,
                       UnusedFields& unused) -> std::unique_ptr<FieldReader> {
       return std::make_unique<MessageListReader>(column, MessageNames::kRoleContent, unused);
     }});

const bool kSharegptRegistered = DataFormats::instance().add(
    "sharegpt",
    {.title = "ShareGPT",
     .fields = "a list of {\"from\", \"value\"}, as \"conversations\", and, where there is, system",
     .rank = 1,
     .names = {"conversations", "messages", "system"},
     .match =
         [](const RecordSketch& record) {
           return find_message_list(record, MessageNames::kFromValue);
         },
     .make_reader = [](const std::string& column,
                       UnusedFields& unused) -> std::unique_ptr<FieldReader> {
       return std::make_unique<MessageListReader>(column, MessageNames::kFromValue, unused);
     }});

}  // namespace

}  // namespace fastsft
