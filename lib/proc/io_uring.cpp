#include "lib/proc/io_uring.h"

#include <fmt/format.h>
#include <unistd.h>

#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/proc/procfs.h"
#include "lib/proc/procfs_internal.h"

namespace ckpt::proc {

namespace {

template <class T>
bool parse(std::string_view text, T& out, int base = 10) {
  if (base == 16 && text.substr(0, 2) == "0x") text.remove_prefix(2);
  return parse_number(text, out, base);
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// The lines below "UserFiles:", "UserBufs:" and "PollList:" are theirs, and are indented.
class Parser {
 public:
  Result<UringInfo> run(std::string_view text) {
    while (!text.empty() && ok_) {
      const size_t end = std::min(text.find('\n'), text.size());
      take(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (!ok_) return fail(Code::kUnsupported, "fdinfo", "describes an io_uring in a form that this ckpt does not know");
    if (!has_counters_ || !has_tables_) return fail(Code::kBusy, "an io_uring", "is being worked on");
    return std::move(out_);
  }

 private:
  void take(std::string_view line) {
    if (line.empty()) return;
    const size_t colon = std::min(line.find(':'), line.size());
    const std::string_view key = trimmed(line.substr(0, colon));
    const std::string_view value = trimmed(line.substr(std::min(colon + 1, line.size())));
    if (line[0] == ' ' || line[0] == '\t') return take_indented(key, value);
    section_ = key;
    if (key == "SqMask") ok_ = take_mask(value, out_.sq_entries);
    else if (key == "CqMask") ok_ = take_mask(value, out_.cq_entries);
    else if (key == "CachedSqHead") ok_ = parse(value, out_.submitted);
    else if (key == "SqTail") ok_ = parse(value, out_.tail);
    else if (key == "CachedCqTail") ok_ = has_counters_ = parse(value, out_.completed);
    else if (key == "SqThread") ok_ = parse(value, out_.poller);
    else if (key == "UserFiles") ok_ = parse(value, out_.file_slots);
    else if (key == "UserBufs") ok_ = parse(value, buffer_slots_) && buffer_slots_ <= kMostSlots;
    else if (key == "Personalities") out_.has_personalities = true;
    else if (key == "PollList") has_tables_ = true;
  }

  bool take_mask(std::string_view value, uint32_t& entries) {
    if (!parse(value, entries, 16) || entries >= kMostSlots || (entries & (entries + 1)) != 0) return false;
    ++entries;
    return true;
  }

  void take_indented(std::string_view key, std::string_view value) {
    uint32_t slot = 0;
    if (section_ == "UserFiles") {
      ok_ = parse(key, slot) && slot < out_.file_slots;
      if (ok_ && value != "<none>") out_.files.emplace_back(slot, unescape_octal(value));
    } else if (section_ == "UserBufs") {
      ok_ = parse(key, slot) && slot < buffer_slots_ && take_buffer(slot, value);
    } else if (section_ == "PollList") {
      int opcode = 0;
      ok_ = key.substr(0, 3) == "op=" && parse(key.substr(3, key.find(',') - 3), opcode);
      out_.polled.push_back(opcode);
    } else if (section_ == "CqOverflowList") {
      out_.has_overflow = true;
    }
  }

  bool take_buffer(uint32_t slot, std::string_view value) {
    out_.buffers.resize(buffer_slots_);
    if (value == "<none>") return true;
    const size_t slash = value.find('/');
    return slash != std::string_view::npos && parse(value.substr(0, slash), out_.buffers[slot].first, 16) &&
           parse(value.substr(slash + 1), out_.buffers[slot].second);
  }

  static constexpr uint32_t kMostSlots = 1 << 20;
  UringInfo out_;
  std::string_view section_;
  uint32_t buffer_slots_ = 0;
  bool ok_ = true, has_counters_ = false, has_tables_ = false;
};

}  // namespace

Result<UringInfo> parse_uring_info(std::string_view text) { return Parser().run(text); }

Result<UringInfo> read_uring_info(int pid, int fd) {
  constexpr int kTries = 200;
  constexpr unsigned kPauseUs = 50;
  constexpr uint64_t kLimit = 64 << 20;
  for (int i = 0;; ++i) {
    CKPT_TRY_ASSIGN(std::string text, io::read_file(fmt::format("/proc/{}/fdinfo/{}", pid, fd), kLimit));
    auto info = parse_uring_info(text);
    if (info || info.error().code != Code::kBusy || i == kTries) return info;
    ::usleep(kPauseUs);
  }
}

bool is_io_worker(const Stat& stat) {
  constexpr uint64_t kIoWorker = 0x10;  // PF_IO_WORKER
  return (stat.kernel_flags & kIoWorker) != 0;
}

bool is_io_worker(int pid, int tid) {
  auto stat = read_thread_stat(pid, tid);
  return stat && is_io_worker(*stat);
}

}  // namespace ckpt::proc
