#include "core/ordered_pipeline.h"

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>

#include "core/start_threads.h"

namespace fastsft {
namespace {

class Line {
 public:
  Line(OrderedPipeline& work, int num_threads) : work_(work), max_waiting_(2 * num_threads) {}

  void run(bool is_caller) {
    for (Done done; next(done);) {
      try {
        if (!done.error) work_.work(*done.piece);
        if (is_caller) work_.poll();
      } catch (...) {
        done.error = std::current_exception();
      }
      try {
        hand_over(std::move(done));
      } catch (...) {
        const std::lock_guard lock(take_mutex_);
        if (!error_) error_ = std::current_exception();
        room_.notify_all();
        return;
      }
    }
  }

  void finish() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Done {
    int64_t number = 0;
    std::unique_ptr<OrderedPipeline::Piece> piece;
    std::exception_ptr error;
  };

  // Makes the next piece. Waits while too many pieces are unfinished, so that a slow piece cannot
  // let the others fill the memory.
  bool next(Done& done) {
    std::unique_lock lock(make_mutex_);
    if (is_over_) return false;
    if (!wait_for_room(is_last_alone_ ? 1 : max_waiting_)) return false;
    done = {num_made_, nullptr, nullptr};
    try {
      done.piece = work_.make();
      if (!done.piece) is_over_ = true;
    } catch (...) {
      done.error = std::current_exception();
      is_over_ = true;
    }
    if (!done.piece && !done.error) return false;
    is_last_alone_ = done.piece && work_.is_alone(*done.piece);
    if (is_last_alone_ && !wait_for_room(1)) return false;
    ++num_made_;
    return true;
  }

  // Waits until fewer than `max_waiting` pieces are made and not taken. Returns false after an
  // error.
  bool wait_for_room(int64_t max_waiting) {
    std::unique_lock lock(take_mutex_);
    room_.wait(lock, [&] { return num_made_ - num_taken_ < max_waiting || error_; });
    return !error_;
  }

  // Stores a finished piece. The thread that brings the next piece in order takes that piece and
  // all stored pieces that follow it.
  void hand_over(Done done) {
    std::unique_lock lock(take_mutex_);
    waiting_.emplace(done.number, std::move(done));
    while (!is_taking_ && !error_ && !waiting_.empty() && waiting_.begin()->first == num_taken_) {
      Done first = std::move(waiting_.extract(waiting_.begin()).mapped());
      is_taking_ = true;
      lock.unlock();
      take(first);
      first.piece.reset();
      lock.lock();
      is_taking_ = false;
      if (first.error) error_ = first.error;
      ++num_taken_;
      room_.notify_all();
    }
  }

  void take(Done& done) {
    if (done.error) return;
    try {
      work_.take(*done.piece);
    } catch (...) {
      done.error = std::current_exception();
    }
  }

  OrderedPipeline& work_;
  const int64_t max_waiting_;
  std::mutex make_mutex_;
  std::mutex take_mutex_;
  std::condition_variable room_;
  int64_t num_made_ = 0;
  int64_t num_taken_ = 0;
  bool is_over_ = false;
  bool is_last_alone_ = false;  // refers to the most recently made piece
  bool is_taking_ = false;
  std::map<int64_t, Done> waiting_;
  std::exception_ptr error_;
};

}  // namespace

void run_in_order(OrderedPipeline& work, int num_threads) {
  const int count = choose_threads(num_threads);
  Line line(work, count);
  auto threads = start_threads(static_cast<size_t>(count - 1), [&] { line.run(false); });
  line.run(true);
  threads.clear();
  line.finish();
}

}  // namespace fastsft
