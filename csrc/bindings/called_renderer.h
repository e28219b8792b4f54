#pragma once

#include <pybind11/pybind11.h>

#include "chat/labeller.h"

namespace fastsft::bindings {

// A renderer written in Python: called with a list of (system or None, [(role, text, is_learned)]),
// it returns for each a tuple (pieces [(text, is_data, is_learned)], bos_in_front, data_is_known,
// failure). Holds the GIL while it is called.
class CalledRenderer : public BulkRenderer {
 public:
  explicit CalledRenderer(pybind11::function render) : render_(std::move(render)) {}
  ~CalledRenderer() override;

  std::vector<Transcript> render(std::span<const Dialogue* const> dialogues) const override;

 private:
  pybind11::function render_;
};

}  // namespace fastsft::bindings
