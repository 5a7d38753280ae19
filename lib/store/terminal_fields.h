// The members of terminals in the manifest; see manifest_fields.h.
#pragma once

#include <array>

#include "lib/store/terminal_image.h"

namespace ckpt::store {

inline constexpr std::array<const char*, 3> kOutputStopNames = {"none", "character", "call"};
inline constexpr std::array<const char*, 3> kTerminalSideNames = {"master", "slave", "controlling"};
inline constexpr size_t kTerminalSettingsSize = 44, kTerminalLockedSize = 36;
inline constexpr size_t kTerminalMaxQueue = 1 << 20;

template <class A>
void describe(A& a, typename A::template Of<TypedLine> l) {
  a.octets("bytes", l.bytes, 0, kTerminalMaxQueue);
  a.flag("marked", l.marked);
}

template <class A>
void describe(A& a, typename A::template Of<Terminal> t) {
  a.number("index", t.index, 0, 1 << 20);
  a.flag("master_open", t.master_open);
  a.flag("slave_closed", t.slave_closed);
  a.flag("locked", t.locked);
  a.flag("packet", t.packet);
  a.flag("master_exclusive", t.master_exclusive);
  a.flag("slave_exclusive", t.slave_exclusive);
  a.number("uid", t.uid);
  a.number("gid", t.gid);
  a.number("mode", t.mode, 0, 07777);
  a.octets("settings", t.settings, t.master_open ? kTerminalSettingsSize : 0, kTerminalSettingsSize);
  a.octets("locked_settings", t.locked_settings, t.master_open ? kTerminalLockedSize : 0, kTerminalLockedSize);
  a.number("rows", t.rows, 0, 65535);
  a.number("columns", t.columns, 0, 65535);
  a.number("width", t.width, 0, 65535);
  a.number("height", t.height, 0, 65535);
  a.number("session", t.session, 0);
  a.number("foreground", t.foreground, 0);
  a.choice("stop", t.stop, kOutputStopNames);
  a.list("lines", t.lines);
  a.octets("typed", t.typed, 0, kTerminalMaxQueue);
  a.octets("output", t.output, 0, kTerminalMaxQueue);
}

template <class A>
void describe(A& a, typename A::template Of<TerminalEnd> e) {
  a.number("terminal", e.terminal, 0);
  a.choice("side", e.side, kTerminalSideNames);
  a.flag("hung_up", e.hung_up);
}

}  // namespace ckpt::store
