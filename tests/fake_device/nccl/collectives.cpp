#include "collectives.h"

#include <cstring>
#include <fstream>
#include <stdexcept>

#include "reduction.h"

namespace fs = std::filesystem;

namespace fake_device {
namespace {

void write_file(const fs::path& path, const Header& header, const void* data, size_t bytes) {
  const fs::path partial = path.string() + ".partial";
  std::ofstream file(partial, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  if (!file) throw std::runtime_error("cannot write " + partial.string());
  fs::rename(partial, path);
}

std::vector<char> read_file(const fs::path& path, Header& header) {
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  return {std::istreambuf_iterator<char>(file), {}};
}

// One collective of this rank.
class Collective {
 public:
  Collective(const Request& request, uint64_t number) : request_(request), number_(number) {}

  bool operator()() {
    ncclComm& comm = *request_.comm;
    if (*comm.aborted) return true;
    if (comm.finished + 1 < number_) return false;  // in the order of the calls, on any stream
    if (!written_) {
      write_file(path(number_, comm.rank), request_.header, request_.send, request_.sent_bytes());
      written_ = true;
    }
    for (int rank = 0; rank < comm.size; ++rank) {
      if (!fs::exists(path(number_, rank))) return false;
    }
    std::vector<std::vector<char>> sent;
    for (int rank = 0; rank < comm.size; ++rank) sent.push_back(read(rank));
    receive(sent);
    comm.finished = number_;
    if (number_ > 1) fs::remove(path(number_ - 1, comm.rank));  // all ranks have read it
    return true;
  }

 private:
  fs::path path(uint64_t number, int rank) const {
    return request_.comm->folder / ("c" + std::to_string(number) + "." + std::to_string(rank));
  }

  std::vector<char> read(int rank) const {
    Header theirs{};
    std::vector<char> data = read_file(path(number_, rank), theirs);
    const Header& ours = request_.header;
    if (theirs == ours) return data;
    throw std::runtime_error("collective " + std::to_string(number_) + " is " +
                             name_of(ours.transfer) + " of " + std::to_string(ours.count) +
                             " elements on rank " + std::to_string(request_.comm->rank) + ", but " +
                             name_of(theirs.transfer) + " of " + std::to_string(theirs.count) +
                             " on rank " + std::to_string(rank));
  }

  void receive(const std::vector<std::vector<char>>& sent) const {
    const ncclComm& comm = *request_.comm;
    const Header& header = request_.header;
    const size_t bytes = header.count * bytes_of(header.type);
    const auto rank = static_cast<size_t>(comm.rank);
    auto* out = static_cast<char*>(request_.recv);
    switch (header.transfer) {
      case Transfer::kAllGather:
        for (size_t r = 0; r < sent.size(); ++r)
          std::memcpy(out + r * bytes, sent[r].data(), bytes);
        return;
      case Transfer::kAllToAll:
        for (size_t r = 0; r < sent.size(); ++r)
          std::memcpy(out + r * bytes, sent[r].data() + rank * bytes, bytes);
        return;
      case Transfer::kBroadcast:
        std::memcpy(out, sent[static_cast<size_t>(header.root)].data(), bytes);
        return;
      default:
        break;
    }
    const size_t begin = header.transfer == Transfer::kReduceScatter ? rank * bytes : 0;
    std::vector<char> sum(sent[0].data() + begin, sent[0].data() + begin + bytes);
    for (size_t r = 1; r < sent.size(); ++r)
      reduce_into(sum.data(), sent[r].data() + begin, header.count, header.type, header.op);
    if (header.op == ncclAvg) divide(sum.data(), header.count, header.type, comm.size);
    if (header.transfer != Transfer::kReduce || header.root == comm.rank)
      std::memcpy(out, sum.data(), bytes);
  }

  Request request_;
  uint64_t number_;
  bool written_ = false;
};

// The messages of one group on one stream: all are sent, then each is awaited.
class Messages {
 public:
  void add(const Request& request) {
    ncclComm& comm = *request.comm;
    const int peer = request.header.root;
    const bool sends = request.header.transfer == Transfer::kSend;
    const auto pair = sends ? std::pair(comm.rank, peer) : std::pair(peer, comm.rank);
    const uint64_t number = ++(sends ? comm.sent : comm.received)[peer];
    const std::string file = "m" + std::to_string(pair.first) + "-" + std::to_string(pair.second) +
                             "." + std::to_string(number);
    messages_.push_back({request, comm.folder / file});
    for (const Range& range : request.ranges()) ranges_.push_back(range);
  }
  const Ranges& ranges() const { return ranges_; }

  bool operator()() {
    if (*messages_[0].request.comm->aborted) return true;
    for (const Message& each : messages_) {
      if (sent_ || each.request.header.transfer != Transfer::kSend) continue;
      write_file(each.path, each.request.header, each.request.send, each.request.sent_bytes());
    }
    sent_ = true;
    bool all = true;
    for (Message& each : messages_) {
      if (each.request.header.transfer == Transfer::kRecv && !each.received) {
        each.received = receive(each);
        all &= each.received;
      }
    }
    return all;
  }

 private:
  struct Message {
    Request request;
    fs::path path;
    bool received = false;
  };

  static bool receive(const Message& message) {
    if (!fs::exists(message.path)) return false;
    Header theirs{};
    const std::vector<char> data = read_file(message.path, theirs);
    const Header& ours = message.request.header;
    if (theirs.count != ours.count || theirs.type != ours.type) {
      throw std::runtime_error("ncclRecv of " + std::to_string(ours.count) +
                               " elements, ncclSend of " + std::to_string(theirs.count));
    }
    std::memcpy(message.request.recv, data.data(), data.size());
    fs::remove(message.path);
    return true;
  }

  std::vector<Message> messages_;
  Ranges ranges_;
  bool sent_ = false;
};

}  // namespace

const char* name_of(Transfer transfer) {
  static const char* const names[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter",
                                      "ncclBroadcast", "ncclReduce",    "ncclAlltoAll",
                                      "ncclSend",      "ncclRecv"};
  return names[static_cast<size_t>(transfer)];
}

size_t Request::sent_bytes() const {
  const size_t bytes = header.count * bytes_of(header.type);
  const bool for_each_rank =
      header.transfer == Transfer::kReduceScatter || header.transfer == Transfer::kAllToAll;
  return for_each_rank ? bytes * static_cast<size_t>(comm->size) : bytes;
}

size_t Request::received_bytes() const {
  const size_t bytes = header.count * bytes_of(header.type);
  const bool from_each_rank =
      header.transfer == Transfer::kAllGather || header.transfer == Transfer::kAllToAll;
  return from_each_rank ? bytes * static_cast<size_t>(comm->size) : bytes;
}

Ranges Request::ranges() const {
  Ranges made;
  if (send) made.push_back(reads(send, sent_bytes()));
  const bool receives = header.transfer != Transfer::kReduce || header.root == comm->rank;
  if (recv && receives) made.push_back(writes(recv, received_bytes()));
  return made;
}

void start(const std::vector<Request>& group) {
  std::map<cudaStream_t, Messages> messages;
  for (const Request& request : group) {
    const Transfer transfer = request.header.transfer;
    if (transfer == Transfer::kSend || transfer == Transfer::kRecv) {
      messages[request.stream].add(request);
      continue;
    }
    const auto work = std::make_shared<Collective>(request, ++request.comm->started);
    enqueue(request.stream, name_of(transfer), request.ranges(), [work] { return (*work)(); });
  }
  for (auto& [stream, each] : messages) {
    const auto work = std::make_shared<Messages>(std::move(each));
    enqueue(stream, "ncclSend and ncclRecv", work->ranges(), [work] { return (*work)(); });
  }
}

}  // namespace fake_device
