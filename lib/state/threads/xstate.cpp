// The extended registers: NT_X86_XSTATE areas, whose size and contents depend on the CPU.
#include <fmt/format.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/proc/ptrace.h"
#include "lib/state/threads/restore.h"

namespace ckpt::restore {

namespace {

constexpr uint64_t kTileConfig = 1ull << 17, kTileData = 1ull << 18;
constexpr size_t kHeaderOffset = 512;  // xstate_bv, the features that are not in their initial state

uint64_t features_of(const std::vector<std::byte>& area) {
  uint64_t out = 0;
  std::memcpy(&out, area.data() + kHeaderOffset, sizeof out);
  return out;
}

/// Asked for once, for the whole process; it must come before any thread loads tiles.
Result<void> ask_for_tiles(Child& child) {
  constexpr int kRequest = 0x1023, kTileDataNumber = 18;  // ARCH_REQ_XCOMP_PERM
  SyscallBatch batch;
  batch.add("get leave to use AMX tiles", SYS_arch_prctl, kRequest, kTileDataNumber);
  return child.run(batch);
}

/// A tile configuration of palette 1 with one tile of one row: enough for the instruction that enlarges the area.
Result<void> enlarge_area(Child& child, int tid) {
  struct {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {64};
    uint8_t rows[16] = {1};
  } config;
  static_assert(sizeof config == 64);
  return child.run_code(tid, child.area().tile_code(), child.area().put(config));
}

}  // namespace

Result<void> set_extended_registers(const store::ImageReader& image, const store::ProcessImage& process, Child& child) {
  CKPT_TRY_ASSIGN(std::vector<std::byte> own, proc::get_xstate(child.pid()));
  bool tiles_granted = process.amx_tiles;
  if (process.amx_tiles) CKPT_TRY(ask_for_tiles(child));
  for (const auto& thread : process.threads) {
    CKPT_TRY_ASSIGN(std::vector<std::byte> area, image.read_xstate(thread.xstate_offset, thread.xstate_size));
    uint64_t features = features_of(area);
    if ((features & (kTileConfig | kTileData)) != 0) {
      if (!tiles_granted) CKPT_TRY(ask_for_tiles(child));
      tiles_granted = true;
      CKPT_TRY(enlarge_area(child, thread.tid));
    }
    // The layout is the CPU's and the same up to the shorter end: what lies beyond is of features that one side lacks.
    area.resize(own.size());
    Result<void> set = proc::set_xstate(thread.tid, area);
    if (!set) {
      return fail(Code::kUnsupported, fmt::format("thread {}", thread.tid),
                  fmt::format("its extended registers (features {:#x}) cannot be loaded here: {}", features,
                              set.error().text()));
    }
  }
  return {};
}

}  // namespace ckpt::restore
