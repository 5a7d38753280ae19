// Epoll sets: what the manifest says of them.
#pragma once

#include <array>
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

/// struct epoll_params of Linux 6.9, newer than Debian 12's headers.
struct EpollParameters {
  uint32_t microseconds = 0;
  uint16_t budget = 0;
  uint8_t preferred = 0, unused = 0;
  bool operator==(const EpollParameters&) const = default;
};
static_assert(sizeof(EpollParameters) == 8);
inline constexpr unsigned long kSetEpollParameters = 0x40088A01, kGetEpollParameters = 0x80088A02;  // EPIOC*PARAMS

struct Epoll {
  std::vector<EpollEntry> entries;
  std::array<uint32_t, 3> busy_poll{};  ///< EPIOCGPARAMS: microseconds, budget, preferred (0, 1); zeros: as it was made
  bool operator==(const Epoll&) const = default;
};

/// Members of a descriptor.
template <class A>
void describe(A& a, typename A::template Of<Epoll> e) {
  a.list("epoll", e.entries);
  a.optional().numbers("epoll_busy_poll", e.busy_poll);
}

}  // namespace ckpt::store
