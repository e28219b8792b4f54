#include "checkpoint/save_model.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "checkpoint/all_or_none.h"
#include "checkpoint/float_conversion.h"
#include "checkpoint/gather.h"
#include "checkpoint/model_ranges.h"
#include "checkpoint/training_state.h"
#include "core/error.h"
#include "core/start_threads.h"
#include "storage/weight_files.h"

namespace fastsft {
namespace {

std::span<const float> elements_of(const at::Tensor& unit, const ParamSlot& slot) {
  return {unit.const_data_ptr<float>() + slot.offset, static_cast<size_t>(slot.numel())};
}

std::vector<TensorSpec> specs_of(const std::vector<PlannedTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& tensor : tensors) specs.push_back(tensor.spec);
  return specs;
}

void write_tensor(WeightFiles& files, const ParamSlot& slot, std::span<const float> values,
                  DType dtype) {
  std::vector<std::byte> bytes;
  try {
    bytes = write_floats(dtype, values);
  } catch (const std::invalid_argument& error) {
    throw_invalid("saving ", slot.name, ": ", error.what());
  }
  files.write(bytes);
}

uint64_t num_parameters(const std::vector<TensorSpec>& specs) {
  return std::accumulate(
      specs.begin(), specs.end(), uint64_t{0}, [](uint64_t sum, const TensorSpec& spec) {
        return sum + spec.bytes() * 8 / static_cast<uint64_t>(dtype_bits(spec.dtype));
      });
}

}  // namespace

std::vector<FileDigest> save_model(Strategy& strategy, Communicator& all,
                                   const std::string& directory, const SaveOptions& options,
                                   const Writers& writers) {
  const std::span<const UnitState> units = strategy.states();
  FASTSFT_ASSERT(!units.empty());
  const bool writes = writers.writes(all);
  const auto tensors = tensors_to_save(state_dict_order(units), options);
  const auto specs = specs_of(tensors);
  const auto order = aligned_order(specs);
  AllOrNone attempt;
  std::optional<WeightFiles> files;
  std::vector<FileDigest> digests;
  if (writes) {
    attempt.run([&] {
      files.emplace(posix_file_system(), directory, specs, order, options.max_shard_bytes);
    });
  }
  at::Tensor unit;
  std::optional<size_t> gathered;
  for (const size_t i : order) {
    const PlannedTensor& tensor = tensors[i];
    if (tensor.carried) {
      if (writes) attempt.run([&] { files->write(bytes_of({tensor.spec, tensor.carried})); });
      continue;
    }
    if (!writers.gathers(strategy)) continue;
    if (gathered != tensor.place.unit) {
      unit = gather_master(units[tensor.place.unit], strategy.shards(), strategy.device(),
                           writers.readers());
      gathered = tensor.place.unit;
    }
    if (writes) {
      const ParamSlot& slot = *tensor.place.slot;
      attempt.run([&] { write_tensor(*files, slot, elements_of(unit, slot), tensor.spec.dtype); });
    }
  }
  if (writes) attempt.run([&] { digests = files->commit(num_parameters(specs)); });
  attempt.finish(all, strategy.device(), "saving the model to " + directory);
  return digests;
}

namespace {

constexpr int kNice = 10;

void run_all(const std::vector<std::function<void()>>& jobs, Priority priority) {
  std::vector<std::exception_ptr> failures(jobs.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < jobs.size();) {
      try {
        jobs[i]();
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  auto threads = start_threads(jobs.size(), [&] {
    if (priority == Priority::kLow) {
      // On Linux each thread has its own priority. If it cannot be lowered, the save continues
      // anyway.
      const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
      static_cast<void>(::setpriority(PRIO_PROCESS, thread, kNice));
    }
    work();
  });
  threads.clear();
  work();  // runs jobs that no thread took, for example because no thread could be started
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace

WrittenPart write_part(FileSystem& file_system, const std::string& directory, const StatePart& part,
                       const ModelFilePlan& plan, bool with_state, Priority priority) {
  WrittenPart written;
  std::vector<std::function<void()>> jobs;
  jobs.emplace_back(
      [&] { written.ranges = write_model_ranges(file_system, directory, plan, part); });
  if (with_state) {
    jobs.emplace_back(
        [&] { written.files.push_back(save_training_state(file_system, part, directory)); });
  }
  run_all(jobs, priority);
  return written;
}

}  // namespace fastsft
