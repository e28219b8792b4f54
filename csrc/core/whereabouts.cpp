#include "core/whereabouts.h"

#include "core/error.h"
#include "core/phase_deadline.h"

namespace fastsft {
namespace {

// Without the lines of a native backtrace.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Whereabouts& Whereabouts::instance() {
  static Whereabouts whereabouts;
  return whereabouts;
}

void Whereabouts::set_rank(int rank, int world_size) {
  const std::lock_guard lock(mutex_);
  rank_ = rank;
  world_size_ = world_size;
}

void Whereabouts::set_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  PhaseDeadline::instance().progress();
}

void Whereabouts::set_collective(std::string collective) {
  const std::lock_guard lock(mutex_);
  collective_ = std::move(collective);
  PhaseDeadline::instance().progress();
}

std::string Whereabouts::text() {
  const std::lock_guard lock(mutex_);
  return concat("rank ", rank_, " of ", world_size_, ", step ", step_, ", ", phase_.load(),
                ", last collective: ", collective_);
}

Phase::Phase(const char* name) : before_(Whereabouts::instance().phase_.exchange(name)) {
  PhaseDeadline::instance().progress();
}

Phase::~Phase() {
  Whereabouts::instance().phase_.store(before_);
  PhaseDeadline::instance().progress();
}

CollectiveError::CollectiveError(const std::string& what, const std::string& reason)
    : std::runtime_error(concat(Whereabouts::instance().text(), ": ", what,
                                " failed: ", first_line(reason),
                                "; another rank died or is stuck: look for the first message of "
                                "another rank, then start the same command again: it resumes from "
                                "the newest checkpoint")) {}

}  // namespace fastsft
