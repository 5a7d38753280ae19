#include <doctest/doctest.h>

#include "lib/state/cgroups/record.h"
#include "lib/state/gpu/record.h"
#include "lib/state/locks/record.h"
#include "lib/state/memory_policies/record.h"
#include "lib/state/pidfds/record.h"
#include "lib/state/seccomp/record.h"
#include "lib/state/system_v_ipc/record.h"
#include "lib/state/terminals/record.h"
#include "lib/state/watches/record.h"
#include "tests/unit/store/record_archive.h"

using namespace ckpt::store;
using ckpt::store::testing::survives;

TEST_CASE("records: no member of a terminal is lost") {
  Terminal terminal;
  terminal.index = 3, terminal.master_open = true, terminal.slave_closed = true, terminal.locked = true;
  terminal.packet = true, terminal.master_exclusive = true, terminal.slave_exclusive = true;
  terminal.uid = 4, terminal.gid = 5, terminal.mode = 0620;
  terminal.settings.assign(44, 'x'), terminal.locked_settings.assign(36, 'y');
  terminal.rows = 6, terminal.columns = 7, terminal.width = 8, terminal.height = 9;
  terminal.session = 10, terminal.foreground = 11, terminal.stop = OutputStop::kCall;
  terminal.lines = {{{'a', 'b'}, true}, {{}, false}};
  terminal.typed = {0, 255}, terminal.output = {'o'};
  CHECK(survives(terminal));
  CHECK(survives(TerminalEnd{2, TerminalSide::kControlling, true}));
}

TEST_CASE("records: no member of a watch is lost") {
  CHECK(survives(Inotify{{{7, 0x80000fff, "/a", 8, 9}}, true}));
  CHECK(survives(Fanotify{3, 0x8000, {{FanotifyScope::kMount, 0x40, 1ull << 40, 2, "/b", 10, 11}}}));
  CHECK(survives(ProcessHandle{12}));
}

TEST_CASE("records: no member of a lock is lost") {
  CHECK(survives(FileLock{LockKind::kOfd, true, 1ll << 40, 1ll << 41}));
  CHECK(survives(FileLock{LockKind::kPosix, false, 0, -1}));
}

TEST_CASE("records: no member of a System V object or of a POSIX queue is lost") {
  IpcIdentity identity{5, -6, 0617, 7, 8};
  SystemVIpc ipc;
  ipc.segments = {{identity, 5000, true, false}, {identity, 5001, false, true}};
  ipc.sets = {{identity, {{1, 2}, {3, 4}}}};
  ipc.queues = {{identity, 16384, 9, 10, {{1ll << 40, {1, 2, 3}}, {1, {}}}}};
  CHECK(survives(ipc));
  CHECK(survives(PosixQueue{"/q", true, 10, 8192, 0600, 1, 2, 3, {{7, {4, 5}}}}));
}

TEST_CASE("records: no member of seccomp is lost") {
  CHECK(survives(Seccomp{{{true, std::vector<uint8_t>(16, 7)}, {false, std::vector<uint8_t>(8, 9)}},
                         {{2, false, {0, 1, 0}}, {1, true, {}}}}));
}

TEST_CASE("records: no member of a control group or a NUMA policy is lost") {
  CHECK(survives(Cgroup{"cpu,cpuacct", "/a"}));
  CHECK(survives(MemoryPolicy{0x8002, {0, 3}}));
  CHECK(survives(MappingPolicy{0x1000, {3, {1}}}));
}

TEST_CASE("records: no member of device memory is lost") {
  const DeviceLaunch launch{8, {9, 0}, "k", {{10, 11}}, {{12, 13}}};
  CHECK(survives(DeviceMemory{1, 2, {{3, 1ull << 40, 65536, "GPU-4", 5, {{6, 7}}}}, {launch}}));
}
