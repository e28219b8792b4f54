#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "chat/labeller.h"
#include "core/error.h"

namespace fastsft::bindings {

namespace py = pybind11;

// A renderer written in Python: called with a list of (system or None, [(role, text, is_learned,
// more)], tools), it returns for each a tuple (pieces [(text, is_data, is_learned)], bos_in_front,
// data_is_known, failure, more_data, rewritten, needs_rows). `more` and `tools` are JSON or empty.
// Holds the GIL while it is called.
class CalledRenderer : public BulkRenderer {
 public:
  explicit CalledRenderer(py::function render) : render_(std::move(render)) {}
  // The function may go with the last owner, in a thread without the GIL.
  ~CalledRenderer() override {
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
    return py::make_tuple(system, messages, dialogue.tools);
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

}  // namespace fastsft::bindings
