#include "core/rank_status.h"

#include "core/error.h"
#include "core/watchdog.h"

namespace fastsft {
namespace {

// Removes a native backtrace, which follows the first line.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

RankStatus& RankStatus::instance() {
  static RankStatus status;
  return status;
}

void RankStatus::set_rank(int rank, int world_size) {
  const std::lock_guard lock(mutex_);
  rank_ = rank;
  world_size_ = world_size;
}

void RankStatus::set_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  PhaseDeadline::instance().progress();
}

void RankStatus::set_collective(std::string collective) {
  const std::lock_guard lock(mutex_);
  collective_ = std::move(collective);
  PhaseDeadline::instance().progress();
}

std::string RankStatus::text() {
  const std::lock_guard lock(mutex_);
  return concat("rank ", rank_, " of ", world_size_, ", step ", step_, ", ", phase_.load(),
                ", last collective: ", collective_);
}

ScopedPhase::ScopedPhase(const char* name) : before_(RankStatus::instance().phase_.exchange(name)) {
  PhaseDeadline::instance().progress();
}

ScopedPhase::~ScopedPhase() {
  RankStatus::instance().phase_.store(before_);
  PhaseDeadline::instance().progress();
}

CollectiveError::CollectiveError(const std::string& what, const std::string& reason)
    : std::runtime_error(concat(RankStatus::instance().text(), ": ", what,
                                " failed: ", first_line(reason),
                                "; another rank died or is stuck: look for the first message of "
                                "another rank, then start the same command again: it resumes from "
                                "the newest checkpoint")) {}

}  // namespace fastsft
