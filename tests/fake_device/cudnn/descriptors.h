// cuDNN's backend descriptors: bags of attributes, until they are finalized.
#pragma once

#include <cudnn.h>

#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace fake_cudnn {

struct Graph;
struct Step;

struct Descriptor {
  struct Value {
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<char> bytes;
  };
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Value> values = {};
  std::shared_ptr<const Step> step = {};    // of an operation
  std::shared_ptr<const Graph> graph = {};  // of an operation graph, and of what is made from it

  bool has(cudnnBackendAttributeName_t name) const { return values.count(name) != 0; }

  template <typename T>
  std::vector<T> list(cudnnBackendAttributeName_t name) const {
    if (!has(name)) throw std::runtime_error("attribute " + std::to_string(name) + " is missing");
    const Value& value = values.at(name);
    std::vector<T> result(static_cast<size_t>(value.count));
    if (result.size() * sizeof(T) != value.bytes.size()) {
      throw std::runtime_error("attribute " + std::to_string(name) + " has another type");
    }
    std::memcpy(result.data(), value.bytes.data(), value.bytes.size());
    return result;
  }
  template <typename T>
  T one(cudnnBackendAttributeName_t name) const {
    return list<T>(name).at(0);
  }
  template <typename T>
  T one(cudnnBackendAttributeName_t name, T otherwise) const {
    return has(name) ? one<T>(name) : otherwise;
  }
  const Descriptor* descriptor(cudnnBackendAttributeName_t name) const {
    return has(name) ? one<const Descriptor*>(name) : nullptr;
  }
};

}  // namespace fake_cudnn
