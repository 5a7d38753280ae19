// The members of watches in the manifest; see manifest_fields.h.
#pragma once

#include <array>

#include "lib/store/watch_image.h"

namespace ckpt::store {

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

template <class A>
void describe(A& a, typename A::template Of<ProcessHandle> h) {
  a.number("pid", h.pid, -1);
}

}  // namespace ckpt::store
