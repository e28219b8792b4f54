#include "bindings/called_renderer.h"

#include <optional>
#include <string>

#include "core/error.h"

namespace fastsft::bindings {
namespace {

namespace py = pybind11;

py::object to_python(const Dialogue& dialogue) {
  py::list messages;
  for (const DialogueMessage& message : dialogue.messages) {
    messages.append(py::make_tuple(name_of(message.role), message.text, message.is_learned));
  }
  py::object system = py::none();
  if (dialogue.system) system = py::cast(*dialogue.system);
  return py::make_tuple(system, messages);
}

Transcript from_python(const py::handle& rendered) {
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
  return transcript;
}

}  // namespace

// The function may go with the last owner, in a thread without the GIL.
CalledRenderer::~CalledRenderer() {
  const py::gil_scoped_acquire acquired;
  render_ = py::function();
}

std::vector<Transcript> CalledRenderer::render(std::span<const Dialogue* const> dialogues) const {
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

}  // namespace fastsft::bindings
