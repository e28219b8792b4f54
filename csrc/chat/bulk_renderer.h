#pragma once

#include <span>
#include <vector>

#include "chat/dialogue.h"
#include "chat/transcript.h"

namespace fastsft {

// Renders many dialogues at once with a template that is not data.
class BulkRenderer {
 public:
  virtual ~BulkRenderer() = default;

  // One transcript for each dialogue, empty ones included. Called by one thread at a time.
  virtual std::vector<Transcript> render(std::span<const Dialogue* const> dialogues) const = 0;
};

}  // namespace fastsft
