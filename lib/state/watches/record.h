// inotify and fanotify: what the manifest says of them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::store {

struct InotifyWatch {
  int wd = 0;  ///< the number the program knows it by
  uint32_t mask = 0;
  std::string path;
  uint64_t device = 0, inode = 0;
  bool operator==(const InotifyWatch&) const = default;
};

struct Inotify {
  std::vector<InotifyWatch> watches;  ///< by wd
  /// Events wait that the program has not read. Nothing can look at them or make them again: it is told IN_Q_OVERFLOW
  /// instead, which means just that.
  bool overflow = false;
  bool operator==(const Inotify&) const = default;
};

enum class FanotifyScope { kInode, kMount, kFilesystem };

struct FanotifyMark {
  FanotifyScope scope = FanotifyScope::kInode;
  uint32_t flags = 0;  ///< FAN_MARK_* that fdinfo shows: IGNORED_SURV_MODIFY, EVICTABLE, IGNORE
  uint64_t mask = 0, ignored_mask = 0;
  std::string path;  ///< kMount, kFilesystem: a mount point
  uint64_t device = 0, inode = 0;
  bool operator==(const FanotifyMark&) const = default;
};

struct Fanotify {
  uint32_t flags = 0, event_flags = 0;  ///< of fanotify_init
  std::vector<FanotifyMark> marks;
  bool operator==(const Fanotify&) const = default;
};

inline constexpr std::array<const char*, 3> kFanotifyScopeNames = {"inode", "mount", "filesystem"};

template <class A>
void describe(A& a, typename A::template Of<InotifyWatch> w) {
  a.number("wd", w.wd, 1);
  a.number("mask", w.mask);
  a.text("path", w.path);
  a.number("device", w.device);
  a.number("inode", w.inode);
}

template <class A>
void describe(A& a, typename A::template Of<Inotify> i) {
  a.list("watches", i.watches);
  a.flag("overflow", i.overflow);
}

template <class A>
void describe(A& a, typename A::template Of<FanotifyMark> m) {
  a.choice("scope", m.scope, kFanotifyScopeNames);
  a.number("flags", m.flags);
  a.hex("mask", m.mask);
  a.hex("ignored_mask", m.ignored_mask);
  a.text("path", m.path);
  a.number("device", m.device);
  a.number("inode", m.inode);
}

template <class A>
void describe(A& a, typename A::template Of<Fanotify> f) {
  a.number("flags", f.flags);
  a.number("event_flags", f.event_flags);
  a.list("marks", f.marks);
}

}  // namespace ckpt::store
