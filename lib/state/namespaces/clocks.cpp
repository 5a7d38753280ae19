#include "lib/state/namespaces/clocks.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <ctime>

#include "lib/base/io.h"
#include "lib/base/unique_fd.h"

namespace ckpt::state {

namespace {

constexpr int64_t kSecond = 1'000'000'000;

Result<int64_t> read_clock(clockid_t clock) {
  timespec now{};
  if (::clock_gettime(clock, &now) != 0) return sys_error("clock", "cannot be read");
  return now.tv_sec * kSecond + now.tv_nsec;
}

/// "monotonic -7 500000000": what is behind the second is never negative.
std::string offset_line(const char* name, int64_t offset) {
  int64_t seconds = offset / kSecond, rest = offset % kSecond;
  if (rest < 0) --seconds, rest += kSecond;
  return fmt::format("{} {} {}\n", name, seconds, rest);
}

}  // namespace

Result<store::Clocks> read_clocks() {
  store::Clocks out;
  CKPT_TRY_ASSIGN(out.monotonic_ns, read_clock(CLOCK_MONOTONIC));
  CKPT_TRY_ASSIGN(out.boottime_ns, read_clock(CLOCK_BOOTTIME));
  return out;
}

Result<void> set_clocks_of_children(const store::Clocks& clocks, int pid) {
  CKPT_TRY_ASSIGN(const store::Clocks now, read_clocks());
  const std::string text = offset_line("monotonic", clocks.monotonic_ns - now.monotonic_ns) +
                           offset_line("boottime", clocks.boottime_ns - now.boottime_ns);
  const std::string file_name = fmt::format("/proc/{}/timens_offsets", pid == 0 ? "self" : std::to_string(pid));
  CKPT_TRY_ASSIGN(UniqueFd file, io::open_file(file_name, O_WRONLY));
  return io::write_all(file.get(), as_bytes(text), file_name);
}

}  // namespace ckpt::state
