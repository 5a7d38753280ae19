#include "lib/migrate/stage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>

#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/base/pipe.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"
#include "lib/migrate/later_pages.h"
#include "lib/proc/memory_room.h"

namespace ckpt::migrate {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMemory = "/dev/shm";
constexpr size_t kMostFiles = 300;  // 256 pages files, and those that every image has

bool is_in_memory(const fs::path& folder) {
  struct statfs what{};
  return ::statfs(folder.c_str(), &what) == 0 && what.f_type == TMPFS_MAGIC;
}

/// Lower-case letters, digits, '.', '_' and '-'; no name that is hidden or leads elsewhere.
bool is_file_name(const std::string& name) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  return !name.empty() && name.size() <= Link::kMostName && kLetters.find(name[0]) != std::string_view::npos &&
         name.find_first_not_of(std::string(kLetters) + "._-") == std::string::npos;
}

/// Helpers of whoever was killed may be taking away theirs in it at the same time, which fails a remove_all.
void remove_surely(const fs::path& folder) {
  constexpr int kTries = 100;
  constexpr timespec kPause{0, 10'000'000};
  std::error_code ec;
  for (int i = 0; i < kTries; ++i) {
    fs::remove_all(folder, ec);
    if (!ec) return;
    ::nanosleep(&kPause, nullptr);
  }
}

[[noreturn]] void sweep_afterwards(int channel, const fs::path& folder) {
  ::prctl(PR_SET_NAME, "ckpt-sweeper", 0, 0, 0);
  ::setsid();
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  ::dup2(channel, 0);
  io::close_descriptors(1);
  char byte = 0;
  ssize_t got;
  while ((got = ::read(0, &byte, 1)) < 0 && errno == EINTR) {
  }
  if (got == 0) remove_surely(folder);
  ::_exit(0);
}

Result<uint64_t> free_room(const fs::path& folder) {
  struct statvfs room{};
  if (::statvfs(folder.c_str(), &room) != 0) return sys_error(folder.string(), "cannot be asked for its room");
  uint64_t out = uint64_t{room.f_bavail} * room.f_frsize;
  if (!is_in_memory(folder)) return out;
  for (const proc::MemoryRoom& memory : proc::read_memory_room(::getpid())) out = std::min(out, memory.bytes);
  return out;
}

}  // namespace

Result<UniqueFd> start_sweeper(const fs::path& folder) {
  CKPT_TRY_ASSIGN(auto ends, make_pipe());
  auto& [theirs, ours] = ends;
  const pid_t middle = ::fork();
  if (middle < 0) return fork_error(errno, "", "cannot make a process");
  if (middle == 0) {
    if (::fork() == 0) sweep_afterwards(theirs.get(), folder);
    ::_exit(0);
  }
  while (::waitpid(middle, nullptr, 0) < 0 && errno == EINTR) {
  }
  return std::move(ours);
}

Result<Stage> Stage::make(const fs::path& where) {
  Stage out;
  if (where.empty() && !is_in_memory(kMemory)) {
    return Error(Code::kUnsupported, kMemory, "is not in memory, and would have the image meanwhile")
        .with_hint("--dir names a folder at the other end");
  }
  const fs::path folder = where.empty() ? fs::path(kMemory) : where;
  CKPT_TRY_ASSIGN(const std::string id, random_id());
  const fs::path path = folder / (".ckpt-receive-" + id);
  CKPT_TRY_ASSIGN(out.sweeper_, start_sweeper(path));  // first: a kill may come at any moment
  if (::mkdir(path.c_str(), 0700) != 0) return sys_error(folder.string(), "cannot have a folder for the image");
  out.path_ = path;
  CKPT_TRY_ASSIGN(out.room_, free_room(folder));
  out.in_memory_ = is_in_memory(folder);
  return out;
}

Stage::~Stage() {
  std::error_code ec;
  if (path_.empty()) return;
  fs::remove_all(path_, ec);
  if (sweeper_) (void)!::write(sweeper_.get(), "", 1);
}

Result<Stage::File*> Stage::file(const std::string& name) {
  if (!is_file_name(name)) return fail(Code::kCorrupt, escape_for_terminal(name), "is no name of an image's file");
  if (const auto found = files_.find(name); found != files_.end()) return &found->second;
  if (files_.size() == kMostFiles) return fail(Code::kCorrupt, name, "is one file more than an image has");
  File file;
  CKPT_TRY_ASSIGN(file.fd, io::open_file(path_ / name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW));
  return &files_.emplace(name, std::move(file)).first->second;
}

Result<void> Stage::append(const Frame& frame, File& file) {
  if (frame.offset != file.size) return fail(Code::kCorrupt, frame.name, "comes out of order");
  if (frame.payload.size() > room_ - bytes_)
    return fail(Code::kNoRoom, path_.string(), fmt::format("has no room for more than {}", human_bytes(room_)));
  CKPT_TRY(io::pwrite_all(file.fd.get(), frame.payload, file.size, (path_ / frame.name).string()));
  file.digest.update(frame.payload);
  file.size += frame.payload.size(), bytes_ += frame.payload.size();
  return {};
}

/// Its whole length is taken at once, so that what runs already never lacks the room for it.
Result<void> Stage::announce(const Frame& frame, File& file) {
  if (file.size != 0 || file.later) return fail(Code::kCorrupt, frame.name, "is announced too late");
  if (frame.offset > room_ - bytes_)
    return fail(Code::kNoRoom, path_.string(), fmt::format("has no room for more than {}", human_bytes(room_)));
  if (frame.offset != 0 && ::fallocate(file.fd.get(), 0, 0, static_cast<off_t>(frame.offset)) != 0 &&
      (errno != EOPNOTSUPP || ::ftruncate(file.fd.get(), static_cast<off_t>(frame.offset)) != 0))
    return sys_error(path_.string(), "has no room for " + frame.name);
  file.later = true, file.size = frame.offset;
  file.there.resize((file.size + kUnitSize - 1) / kUnitSize);
  bytes_ += file.size, missing_ += file.size;
  return {};
}

Result<void> Stage::put(const Frame& frame, File& file) {
  const bool sound = frame.offset % kUnitSize == 0 && frame.offset < file.size &&
                     frame.payload.size() == std::min(kUnitSize, file.size - frame.offset) + kUnitDigest;
  if (!sound) return fail(Code::kCorrupt, frame.name, "comes in other units than it should");
  std::vector<bool>::reference there = file.there[frame.offset / kUnitSize];
  if (there) return fail(Code::kCorrupt, frame.name, "comes again after it was there");
  const ByteSpan bytes = ByteSpan(frame.payload).first(frame.payload.size() - kUnitDigest);
  if (frame.text().substr(bytes.size()) != to_hex(xxh3_128(bytes)))
    return fail(Code::kCorrupt, frame.name, "has not arrived as it was sent");
  CKPT_TRY(io::pwrite_all(file.fd.get(), bytes, frame.offset, (path_ / frame.name).string()));
  there = true, missing_ -= bytes.size();
  return {};
}

bool Stage::is_later(const std::string& name) const {
  const auto found = files_.find(name);
  return found != files_.end() && found->second.later;
}

Result<bool> Stage::has(const std::string& name, uint64_t offset, uint64_t size,
                        const std::function<void(uint64_t)>& missing) const {
  const auto found = files_.find(name);
  if (found == files_.end() || !found->second.later || size > found->second.size ||
      offset > found->second.size - size)
    return fail(Code::kCorrupt, escape_for_terminal(name), "has no such bytes");
  bool all = true;
  for (uint64_t at = offset / kUnitSize * kUnitSize; at < offset + size; at += kUnitSize) {
    if (found->second.there[at / kUnitSize]) continue;
    all = false;
    missing(at);
  }
  return all;
}

Result<void> Stage::take(const Frame& frame) {
  CKPT_TRY_ASSIGN(File * file, this->file(frame.name));
  if (frame.kind == Kind::kLater && !file->whole) return announce(frame, *file);
  if (file->later && frame.kind == Kind::kData) return put(frame, *file);
  if (file->whole || file->later) return fail(Code::kCorrupt, frame.name, "comes again after its end");
  if (frame.kind == Kind::kData) return append(frame, *file);
  if (frame.offset != file->size || frame.text() != to_hex(file->digest.digest()))
    return fail(Code::kCorrupt, frame.name, "has not arrived as it was sent");
  file->whole = true;
  return {};
}

Result<void> Stage::finish() {
  for (auto& [name, file] : files_) {
    if (!file.whole && !file.later) return fail(Code::kCorrupt, name, "has no end");
    if (!file.later) file.fd.reset();
  }
  return {};
}

}  // namespace ckpt::migrate
