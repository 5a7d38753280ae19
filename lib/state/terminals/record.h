// Pseudo-terminals: what the manifest says of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ckpt::store {

/// How the terminal's output was stopped, which decides what starts it again.
enum class OutputStop {
  kNone,
  kCharacter,  ///< the stop character (^S): the start character undoes it
  kCall,       ///< tcflow(TCOOFF): only tcflow(TCOON) undoes it
};

/// What was typed and not read yet, as reads in canonical mode would return it.
struct TypedLine {
  std::vector<uint8_t> bytes;
  bool marked = false;  ///< ended by the end-of-file character, which is not among the bytes
  bool operator==(const TypedLine&) const = default;
};

struct Terminal {
  int index = 0;              ///< /dev/pts/INDEX
  bool master_open = true;    ///< false: every slave descriptor is hung up
  bool slave_closed = false;  ///< the slave was open and is no longer: the master is hung up on
  bool locked = false;        ///< TIOCSPTLCK
  bool packet = false;        ///< TIOCPKT
  bool master_exclusive = false, slave_exclusive = false;  ///< TIOCEXCL, a setting of each end
  uint32_t uid = 0, gid = 0, mode = 0;                     ///< of /dev/pts/INDEX
  std::vector<uint8_t> settings;                           ///< struct termios2, 44 bytes
  std::vector<uint8_t> locked_settings;                    ///< struct termios of TIOCGLCKTRMIOS, 36 bytes
  int rows = 0, columns = 0, width = 0, height = 0;
  int session = 0, foreground = 0;  ///< of which it is the controlling terminal; 0: of none
  OutputStop stop = OutputStop::kNone;
  std::vector<TypedLine> lines;  ///< whole lines (canonical mode alone)
  std::vector<uint8_t> typed;    ///< the line that is being typed; all that was typed outside of canonical mode
  std::vector<uint8_t> output;   ///< written to the slave, not read by the master yet
  bool operator==(const Terminal&) const = default;
};

enum class TerminalSide {
  kMaster,
  kSlave,
  kControlling,  ///< opened as /dev/tty
};

/// One open file description of a terminal.
struct TerminalEnd {
  int terminal = -1;  ///< index into the image's terminals
  TerminalSide side = TerminalSide::kSlave;
  bool hung_up = false;  ///< cut off (its master closed, vhangup, the end of a session): reads give nothing for ever
  bool operator==(const TerminalEnd&) const = default;
};

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
