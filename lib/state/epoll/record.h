// Epoll sets: what the manifest says of them.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::store {

struct EpollEntry {
  int process = 0;    ///< index into TreeImage::processes: in whose table `target_fd` is a number
  int target_fd = 0;
  int descriptor = -1;  ///< index into TreeImage::descriptors, where the number no longer leads there
  uint32_t events = 0;
  uint64_t data = 0;
  bool operator==(const EpollEntry&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<EpollEntry> e) {
  a.number("process", e.process, 0);
  a.number("target_fd", e.target_fd, 0);
  a.number("descriptor", e.descriptor, -1);
  a.number("events", e.events);
  a.hex("data", e.data);
}

struct Epoll {
  std::vector<EpollEntry> entries;
  bool operator==(const Epoll&) const = default;
};

/// Members of a descriptor.
template <class A>
void describe(A& a, typename A::template Of<Epoll> e) {
  a.list("epoll", e.entries);
}

}  // namespace ckpt::store
