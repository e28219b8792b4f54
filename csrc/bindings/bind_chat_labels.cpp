#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings/bind.h"
#include "chat/explain.h"
#include "chat/labeller.h"
#include "chat/record_parser.h"
#include "chat/template.h"
#include "chat/train_mark.h"
#include "core/error.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

// A renderer written in Python. Its argument is a list of dialogues (system or None, [(role, text,
// is_learned, more)], tools, variables); `more`, `tools` and `variables` are JSON text or empty. It
// returns one tuple per dialogue: (pieces [(text, is_data, is_learned)], bos_in_front,
// data_is_known, failure, more_data, rewritten, needs_rows). Acquires the GIL for each call.
class PythonRenderer : public BatchRenderer {
 public:
  explicit PythonRenderer(py::function render) : render_(std::move(render)) {}
  // The last reference may be dropped on a thread that does not hold the GIL.
  ~PythonRenderer() override {
    const py::gil_scoped_acquire acquired;
    render_ = py::function();
  }

  std::vector<Transcript> render(std::span<const Dialogue* const> dialogues) const override {
    const py::gil_scoped_acquire acquired;
    py::list asked;
    for (const Dialogue* dialogue : dialogues) {
      if (!dialogue->messages.empty()) asked.append(to_python(*dialogue));
    }
    const auto answers = py::cast<py::list>(render_(asked));
    FASTSFT_ASSERT(answers.size() == asked.size(), "a renderer must answer each dialogue");
    std::vector<Transcript> transcripts;
    size_t next = 0;
    for (const Dialogue* dialogue : dialogues) {
      if (dialogue->messages.empty()) {
        transcripts.emplace_back();
      } else {
        transcripts.push_back(from_python(answers[next++]));
      }
    }
    return transcripts;
  }

 private:
  static py::object to_python(const Dialogue& dialogue) {
    py::list messages;
    for (const DialogueMessage& message : dialogue.messages) {
      messages.append(
          py::make_tuple(name_of(message.role), message.text, message.is_learned, message.more));
    }
    py::object system = py::none();
    if (dialogue.system) system = py::cast(*dialogue.system);
    return py::make_tuple(system, messages, dialogue.tools, dialogue.variables);
  }

  static Transcript from_python(const py::handle& rendered) {
    const auto result = py::cast<py::tuple>(rendered);
    Transcript transcript;
    for (const py::handle& item : py::cast<py::list>(result[0])) {
      const auto piece = py::cast<py::tuple>(item);
      transcript.append(py::cast<std::string_view>(piece[0]), py::cast<bool>(piece[1]),
                        py::cast<bool>(piece[2]));
    }
    transcript.bos_in_front = py::cast<bool>(result[1]);
    transcript.data_is_known = py::cast<bool>(result[2]);
    transcript.failure = py::cast<std::string>(result[3]);
    transcript.more_data = py::cast<std::string>(result[4]);
    transcript.rewritten = py::cast<int64_t>(result[5]);
    transcript.needs_rows = py::cast<bool>(result[6]);
    return transcript;
  }

  py::function render_;
};
using TokenRow = std::tuple<int32_t, uint32_t, uint32_t, bool>;
using SegmentRow = std::tuple<uint32_t, uint32_t, bool, bool>;

Explanation explain_record(const std::string& record, const Labeller& labeller, int64_t number,
                           const std::string& data_format) {
  check_format_name(data_format);
  JsonScanner scanner(record, 0, 0, "the record");
  Conversation conversation;
  conversation.number = number;
  JsonScanner start = scanner;
  const auto format = match_format(sketch_record(start), data_format);
  const bool is_named = data_format != kAutoFormat;
  RecordParser(format.value_or(FormatChoice()), is_named).parse(scanner, conversation);
  scanner.expect_end();
  return explain(labeller, conversation);
}

void bind_options(py::module_& module) {
  py::class_<LabelOptions>(module, "LabelOptions")
      .def(
          py::init(
              [](const std::string& mask_policy, const std::string& chat_template,
                 int64_t max_length, int32_t pad_id, int num_threads,
                 const std::string& train_turns, const std::map<std::string, std::string>& role_map,
                 bool role_aliases, const std::string& on_bad_sample, const std::string& overlong,
                 const std::string& digest, const std::string& stop_token,
                 const std::vector<std::string>& template_fields, const std::string& template_date,
                 const std::string& call_stop_token, const std::string& boundary_tokens,
                 const std::string& learn, bool learn_tool_calls, const std::string& learn_thoughts,
                 const std::string& default_system) {
                const bool is_models = chat_template == kModelTemplate;
                return LabelOptions{.mask_policy = parse_mask_policy(mask_policy),
                                    .chat_template = is_models
                                                         ? chat_template
                                                         : canonical_template_name(chat_template),
                                    .chat_template_digest = digest,
                                    .stop_token = stop_token,
                                    .call_stop_token = call_stop_token,
                                    .template_date = template_date,
                                    .template_fields = template_fields,
                                    .max_length = max_length,
                                    .pad_id = pad_id,
                                    .num_threads = num_threads,
                                    .train_turns = parse_train_turns(train_turns),
                                    .learn = parse_learn(learn),
                                    .learn_tool_calls = learn_tool_calls,
                                    .learn_thoughts = parse_learn_thoughts(learn_thoughts),
                                    .default_system = default_system,
                                    .role_map = role_map,
                                    .role_aliases = role_aliases,
                                    .on_bad_sample = parse_on_bad_sample(on_bad_sample),
                                    .overlong = parse_overlong(overlong),
                                    .boundary_tokens = parse_boundary_tokens(boundary_tokens)};
              }),
          py::kw_only(), py::arg("mask_policy") = "fastchat",
          py::arg("chat_template") = "vicuna_v1.1", py::arg("max_length"), py::arg("pad_id") = -1,
          py::arg("num_threads") = 0, py::arg("train_turns") = "all",
          py::arg("role_map") = std::map<std::string, std::string>(),
          py::arg("role_aliases") = false, py::arg("on_bad_sample") = "error",
          py::arg("overlong") = "truncate", py::arg("chat_template_digest") = "",
          py::arg("stop_token") = "", py::arg("template_fields") = std::vector<std::string>(),
          py::arg("template_date") = "", py::arg("call_stop_token") = "",
          py::arg("boundary_tokens") = "merge", py::arg("learn") = "all",
          py::arg("learn_tool_calls") = true, py::arg("learn_thoughts") = "all",
          py::arg("default_system") = "")
      .def_property_readonly("mask_policy",
                             [](const LabelOptions& self) { return name_of(self.mask_policy); })
      .def_property_readonly("train_turns",
                             [](const LabelOptions& self) { return name_of(self.train_turns); })
      .def_property_readonly("learn", [](const LabelOptions& self) { return name_of(self.learn); })
      .def_readonly("learn_tool_calls", &LabelOptions::learn_tool_calls)
      .def_readonly("default_system", &LabelOptions::default_system)
      .def_property_readonly("learn_thoughts",
                             [](const LabelOptions& self) { return name_of(self.learn_thoughts); })
      .def_property_readonly("boundary_tokens",
                             [](const LabelOptions& self) { return name_of(self.boundary_tokens); })
      .def_readonly("chat_template", &LabelOptions::chat_template)
      .def_readonly("stop_token", &LabelOptions::stop_token)
      .def_readonly("call_stop_token", &LabelOptions::call_stop_token)
      .def_readonly("template_date", &LabelOptions::template_date)
      .def_readonly("max_length", &LabelOptions::max_length)
      .def_readonly("pad_id", &LabelOptions::pad_id)
      .def_property_readonly("fingerprint", &LabelOptions::fingerprint);
}

void bind_explanation(py::module_& module) {
  py::class_<RecordIssue>(module, "RecordIssue")
      .def_property_readonly("remark", [](const RecordIssue& self) { return name_of(self.remark); })
      .def_property_readonly("action", [](const RecordIssue& self) { return name_of(self.action); })
      .def_readonly("message", &RecordIssue::message)
      .def_readonly("reason", &RecordIssue::reason);
  py::class_<Explanation>(module, "Explanation")
      .def_property_readonly("name", [](const Explanation& self) { return self.record.name; })
      .def_property_readonly("outcome",
                             [](const Explanation& self) {
                               return self.record.faults.empty() ? name_of(self.record.outcome)
                                                                 : "stopped";
                             })
      .def_property_readonly("findings",
                             [](const Explanation& self) { return self.record.findings; })
      .def_property_readonly("faults", [](const Explanation& self) { return self.record.faults; })
      .def_property_readonly("text", [](const Explanation& self) { return self.transcript.text; })
      .def_property_readonly(
          "text_bytes", [](const Explanation& self) { return py::bytes(self.transcript.text); })
      .def_property_readonly("segments",
                             [](const Explanation& self) {
                               std::vector<SegmentRow> rows;
                               for (const Segment& segment : self.transcript.segments) {
                                 rows.emplace_back(segment.bytes.begin, segment.bytes.end,
                                                   segment.is_data, segment.is_learned);
                               }
                               return rows;
                             })
      .def_property_readonly("tokens",
                             [](const Explanation& self) {
                               std::vector<TokenRow> rows;
                               for (const ExplainedToken& token : self.tokens) {
                                 rows.emplace_back(token.id, token.begin, token.end,
                                                   token.is_learned);
                               }
                               return rows;
                             })
      .def_readonly("num_cut", &Explanation::num_cut);
}

void bind_marks(py::module_& module) {
  module.def(
      "is_train_mark",
      [](const std::string& name) { return find_mark_name(name) != MarkName::kNone; },
      py::arg("name"),
      "Whether a field of this name may say that its message or record is not learned.");
  module.def(
      "judge_train_mark",
      [](const std::string& name, const std::string& json) -> std::string {
        MarkReader reader;
        JsonScanner scanner(json, 0, 0, "the field");
        reader.read(name, scanner);
        const SharedMark mark = reader.take();
        if (mark == nullptr || (mark->is_learned && mark->problem.empty())) return {};
        const std::string reason =
            mark->problem.empty() ? "here only its messages are read, and they would be learned; "
                                    "leave such records out"
                                  : mark->problem;
        return concat("\"", mark->field, "\" is ", mark->value, ": ", reason);
      },
      py::arg("name"), py::arg("json"),
      "Why a record with this field must not be learned; \"\" where it may.");
  module.def("train_mark_stems", &mark_stems,
             "Parts of names of which each that is_train_mark accepts has one, in lower case.");
}

void bind_templates(py::module_& module) {
  py::enum_<BosRule>(module, "BosRule")
      .value("TOKENIZER", BosRule::kTokenizer)
      .value("FIRST_TURN", BosRule::kFirstTurn)
      .value("EACH_TURN", BosRule::kEachTurn);
  py::class_<ChatTemplate>(module, "ChatTemplate")
      .def_readonly("system", &ChatTemplate::system)
      .def_readonly("before_system", &ChatTemplate::before_system)
      .def_readonly("after_system", &ChatTemplate::after_system)
      .def_readonly("system_in_user", &ChatTemplate::system_in_user)
      .def_readonly("before_user", &ChatTemplate::before_user)
      .def_readonly("after_user", &ChatTemplate::after_user)
      .def_readonly("before_assistant", &ChatTemplate::before_assistant)
      .def_readonly("before_stop", &ChatTemplate::before_stop)
      .def_readonly("stop_token", &ChatTemplate::stop_token)
      .def_readonly("after_stop", &ChatTemplate::after_stop)
      .def_readonly("learned_lead", &ChatTemplate::learned_lead)
      .def_readonly("bos", &ChatTemplate::bos)
      .def_readonly("empty_user", &ChatTemplate::empty_user)
      .def_readonly("empty_assistant", &ChatTemplate::empty_assistant)
      .def_readonly("strips", &ChatTemplate::strips)
      .def_readonly("aliases", &ChatTemplate::aliases)
      .def_readonly("jinja_digests", &ChatTemplate::jinja_digests)
      .def_readonly("has_fastchat_labels", &ChatTemplate::has_fastchat_labels);
  module.def("chat_templates", [] { return ChatTemplates::instance().names(); });
  module.def("find_chat_template", &find_chat_template, py::arg("name"),
             py::return_value_policy::reference);
  module.def("canonical_template_name", &canonical_template_name, py::arg("name"));
}

}  // namespace

void bind_chat_labels(py::module_& module) {
  bind_marks(module);
  bind_templates(module);
  bind_options(module);
  bind_explanation(module);
  py::class_<Labeller>(module, "Labeller")
      .def(py::init([](const Tokenizer& tokenizer, const LabelOptions& options,
                       const std::optional<py::function>& render) {
             std::shared_ptr<const BatchRenderer> renderer;
             if (render) renderer = std::make_shared<PythonRenderer>(*render);
             return std::make_unique<Labeller>(tokenizer, options, std::move(renderer));
           }),
           py::arg("tokenizer"), py::arg("options"), py::arg("render") = py::none(),
           py::keep_alive<1, 2>())
      .def_property_readonly("options", &Labeller::options);
  module.def("explain_record", &explain_record, py::arg("record"), py::arg("labeller"),
             py::arg("number") = 0, py::arg("data_format") = "sharegpt",
             py::call_guard<py::gil_scoped_release>(),
             R"(One record (its JSON text) as a labeller sees it.

`text`: what the model reads ("" where the record has no row); `segments`: (begin, end, is_data,
is_learned) in bytes of it; `tokens`: (id, begin, end, is_learned), cut to max_length, without bytes
for BOS; `num_cut`: tokens beyond; `outcome`: noted (kept), truncated, salvaged, unlabelled, dropped,
excluded or stopped; `findings`: remark, action, message, reason; `faults`: what stops the run.
ValueError for text that is no JSON. `data_format`: of its file, or "auto" for what the record says.)");
}

}  // namespace fastsft::bindings
