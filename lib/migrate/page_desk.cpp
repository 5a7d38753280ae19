#include "lib/migrate/page_desk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>

#include "lib/base/fd_message.h"
#include "lib/base/io.h"
#include "lib/base/pipe.h"
#include "lib/base/virtual_file.h"
#include "lib/migrate/later_pages.h"

namespace ckpt::migrate {

namespace fs = std::filesystem;

namespace {

/// A message: who asks wants to read that much there. With it comes the descriptor for the answer.
struct PageQuestion {
  std::array<char, Link::kMostName + 1> file{};
  uint64_t offset = 0, size = 0;
};

Result<SharedPages*> map_shared(int fd) {
  void* const at = ::mmap(nullptr, sizeof(SharedPages), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return sys_error("memory of the pages that come", "cannot be mapped");
  return static_cast<SharedPages*>(at);
}

class ComingFile final : public io::VirtualFile {
 public:
  ComingFile(std::string name, UniqueFd file, uint64_t size, int asks, const SharedPages* shared)
      : name_(std::move(name)), file_(std::move(file)), size_(size), asks_(asks), shared_(shared) {}
  uint64_t size() const override { return size_; }
  Result<void> read(uint64_t offset, MutableByteSpan out) const override;
  std::vector<int> descriptors() const override { return {file_.get(), asks_}; }

 private:
  Result<void> await(uint64_t offset, uint64_t size) const;
  const std::string name_;
  const UniqueFd file_;
  const uint64_t size_;
  const int asks_;
  const SharedPages* const shared_;
};

Result<void> ComingFile::await(uint64_t offset, uint64_t size) const {
  const auto lost = [&] { return fail(Code::kIo, name_, "has not come: the connection to the source has ended"); };
  PageQuestion ask;
  name_.copy(ask.file.data(), ask.file.size() - 1);
  ask.offset = offset, ask.size = size;
  CKPT_TRY_ASSIGN(auto ends, make_socket_pair());
  auto& [ours, theirs] = ends;
  const int fds[] = {theirs.get()};
  const bool asked = send_with_fds(asks_, {reinterpret_cast<const std::byte*>(&ask), sizeof ask}, fds) > 0;
  theirs.reset();
  char byte = 0;
  ssize_t got = -1;
  while (asked && (got = ::recv(ours.get(), &byte, 1, 0)) < 0 && errno == EINTR) {
  }
  if (got == 1 || shared_->all_in.load(std::memory_order_acquire) != 0) return {};
  return lost();
}

Result<void> ComingFile::read(uint64_t offset, MutableByteSpan out) const {
  if (shared_->all_in.load(std::memory_order_acquire) == 0) CKPT_TRY(await(offset, out.size()));
  while (!out.empty()) {
    const ssize_t got = ::pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return sys_error(name_, "cannot be read");
    if (got == 0) return fail(Code::kCorrupt, name_, "is truncated");
    out = out.subspan(static_cast<size_t>(got)), offset += static_cast<uint64_t>(got);
  }
  return {};
}

}  // namespace

Result<UniqueFd> inheritable(int fd) {
  UniqueFd out(::fcntl(fd, F_DUPFD, STDERR_FILENO + 1));
  if (!out) return sys_error("", "cannot copy a descriptor");
  return out;
}

Result<PageDesk> PageDesk::open() {
  PageDesk out;
  CKPT_TRY_ASSIGN(auto ends, make_socket_pair());
  auto& [ours, theirs] = ends;
  out.asks_ = std::move(ours);
  const UniqueFd memory(::memfd_create("ckpt-pages", MFD_CLOEXEC));
  if (!memory || ::ftruncate(memory.get(), sizeof(SharedPages)) != 0) return sys_error("", "cannot make memory");
  CKPT_TRY_ASSIGN(out.shared_, map_shared(memory.get()));
  CKPT_TRY_ASSIGN(out.theirs_, inheritable(theirs.get()));
  CKPT_TRY_ASSIGN(out.state_theirs_, inheritable(memory.get()));
  return out;
}

std::string PageDesk::describe() const { return fmt::format("{},{}", theirs_.get(), state_theirs_.get()); }

void PageDesk::close_theirs() { theirs_.reset(), state_theirs_.reset(); }

Result<void> PageDesk::hear(const Stage& stage, Link& link) {
  PageQuestion ask;
  std::vector<UniqueFd> fds;
  const ssize_t got = receive_with_fds(asks_.get(), {reinterpret_cast<std::byte*>(&ask), sizeof ask}, fds);
  if (got <= 0) {  // nobody is left who could ask
    asks_.reset();
    alone_ = true;
    return {};
  }
  if (got != sizeof ask || fds.size() != 1) return fail(Code::kBug, "", "a question for pages is none");
  ask.file.back() = '\0';
  Question question{ask.file.data(), ask.offset, ask.size, std::move(fds[0])};
  Result<void> sent;
  CKPT_TRY_ASSIGN(const bool there, stage.has(question.file, question.offset, question.size, [&](uint64_t unit) {
    if (sent) sent = link.send(Kind::kWant, {}, question.file, unit);
  }));
  if (there) (void)::send(question.answer.get(), "", 1, MSG_NOSIGNAL);
  else waiting_.push_back(std::move(question));
  return sent;
}

void PageDesk::arrived(const Stage& stage) {
  std::erase_if(waiting_, [&](const Question& question) {
    const auto there = stage.has(question.file, question.offset, question.size, [](uint64_t) {});
    if (!there || !*there) return false;
    (void)::send(question.answer.get(), "", 1, MSG_NOSIGNAL);
    return true;
  });
}

bool PageDesk::failed() const {
  const TaskFate& fate = shared_->fate;
  return fate.failed.load(std::memory_order_acquire) != 0 || (alone_ && !finished());
}

bool PageDesk::finished() const {
  const TaskFate& fate = shared_->fate;
  return fate.begun.load(std::memory_order_acquire) == 0 || fate.finished.load(std::memory_order_acquire) != 0;
}

void PageDesk::all_in() {
  shared_->all_in.store(1, std::memory_order_release);
  give_up();
}

void PageDesk::give_up() {
  asks_.reset();
  waiting_.clear();
}

Result<TaskFate*> expect_pages(const std::string& text, const fs::path& image) {
  int asks = -1, memory = -1;
  char more = 0;
  if (std::sscanf(text.c_str(), "%d,%d%c", &asks, &memory, &more) != 2 || asks <= STDERR_FILENO ||
      memory <= STDERR_FILENO)
    return fail(Code::kUsage, "--coming", "is for ckpt receive alone");
  if (::fcntl(asks, F_SETFD, FD_CLOEXEC) != 0) return sys_error("--coming", "is no descriptor");
  const UniqueFd owned(memory);
  CKPT_TRY_ASSIGN(SharedPages * shared, map_shared(memory));
  std::error_code ec;
  for (fs::directory_iterator it(image, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (!is_pages_file(name)) continue;
    CKPT_TRY_ASSIGN(UniqueFd file, io::open_file(it->path(), O_RDONLY | O_NOFOLLOW));
    CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(file.get(), it->path().string()));
    const auto size = static_cast<uint64_t>(st.st_size);
    io::set_virtual_file(st, std::make_shared<ComingFile>(name, std::move(file), size, asks, shared));
  }
  if (ec) return sys_error(ec.value(), image.string(), "cannot be listed");
  return &shared->fate;
}

}  // namespace ckpt::migrate
