// Watches made here, described from /proc/self/fdinfo, closed, and made again.
#include "lib/state/watches/capture.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "lib/base/io.h"
#include "lib/state/pidfds/capture.h"
#include "lib/state/pidfds/restore.h"
#include "lib/state/tree/child.h"
#include "lib/state/watches/restore.h"
#include "tests/support/free_pid.h"
#include "tests/support/skip.h"

using namespace ckpt;
namespace fs = std::filesystem;

namespace {

/// A folder that goes at the end.
struct Folder {
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "ckpt-watches-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() { fs::remove_all(path); }
  std::string file(const std::string& name) const {
    std::ofstream(path / name) << name;
    return (path / name).string();
  }
  fs::path path;
};

std::string fdinfo(int fd) {
  auto text = io::read_file(fmt::format("/proc/self/fdinfo/{}", fd), 1 << 20);
  REQUIRE(text);
  return *text;
}

capture::FileFinder finder(std::vector<std::string> hints = {}) {
  auto made = capture::FileFinder::create(std::move(hints));
  REQUIRE(made);
  return *made;
}

struct Event {
  int wd;
  uint32_t mask;
  std::string name;
};

std::vector<Event> events(int fd) {
  alignas(inotify_event) char room[4096];
  std::vector<Event> out;
  pollfd poll{fd, POLLIN, 0};
  while (::poll(&poll, 1, 0) == 1) {
    ssize_t n = ::read(fd, room, sizeof room);
    for (ssize_t at = 0; at < n;) {
      auto* event = reinterpret_cast<inotify_event*>(room + at);
      out.push_back({event->wd, event->mask, event->len != 0 ? event->name : ""});
      at += static_cast<ssize_t>(sizeof *event + event->len);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("inotify: watches keep number, mask and file; to look at them makes no event") {
  Folder folder;
  std::string file = folder.file("one"), odd = folder.file("two words\nand a line");
  UniqueFd fd(::inotify_init1(IN_CLOEXEC));
  int gone = ::inotify_add_watch(fd.get(), "/dev", IN_CREATE);
  int first = ::inotify_add_watch(fd.get(), file.c_str(), IN_MODIFY | IN_ONESHOT);
  REQUIRE(::inotify_rm_watch(fd.get(), gone) == 0);
  int second = ::inotify_add_watch(fd.get(), folder.path.c_str(), IN_CREATE | IN_OPEN | IN_EXCL_UNLINK);
  int third = ::inotify_add_watch(fd.get(), odd.c_str(), IN_ALL_EVENTS);
  events(fd.get());
  auto found = capture::describe_inotify(fd.get(), fdinfo(fd.get()), finder());
  REQUIRE_MESSAGE(found, found.error().text());
  CHECK(events(fd.get()).empty());
  REQUIRE(found->watches.size() == 3);
  CHECK(found->watches[0].path == file);
  CHECK(found->watches[2].path == odd);
  CHECK_FALSE(found->overflow);
  fd.reset();
  auto made = restore::make_inotify(*found, O_NONBLOCK);
  REQUIRE_MESSAGE(made, made.error().text());
  CHECK((::fcntl(made->get(), F_GETFL) & O_NONBLOCK) != 0);
  auto again = capture::describe_inotify(made->get(), fdinfo(made->get()), finder());
  REQUIRE(again);
  CHECK(*again == *found);
  folder.file("new");
  std::ofstream(file) << "changed";
  auto seen = events(made->get());
  REQUIRE(seen.size() >= 3);
  CHECK(seen[0].wd == second);
  CHECK(seen[0].name == "new");
  bool told = false;
  for (const Event& event : seen) told |= event.wd == first && (event.mask & IN_MODIFY) != 0;
  CHECK(told);
  CHECK(::inotify_add_watch(made->get(), "/dev/null", IN_OPEN) == third + 1);
}

TEST_CASE("inotify: events that nobody has read become one overflow, and the next events follow it") {
  Folder folder;
  UniqueFd fd(::inotify_init1(IN_CLOEXEC));
  REQUIRE(::inotify_add_watch(fd.get(), folder.path.c_str(), IN_CREATE) == 1);
  folder.file("before");
  auto found = capture::describe_inotify(fd.get(), fdinfo(fd.get()), finder());
  REQUIRE(found);
  CHECK(found->overflow);
  CHECK(events(fd.get()).size() == 1);
  auto made = restore::make_inotify(*found, 0);
  REQUIRE_MESSAGE(made, made.error().text());
  folder.file("after");
  auto seen = events(made->get());
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].mask == IN_Q_OVERFLOW);
  CHECK(seen[0].wd == -1);
  CHECK(seen[1].name == "after");
  CHECK(seen[1].wd == 1);
}

TEST_CASE("inotify: a watch on a deleted file is refused; one whose file was replaced or is gone is a reason") {
  Folder folder;
  std::string file = folder.file("one");
  UniqueFd fd(::inotify_init1(IN_CLOEXEC)), open(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(::inotify_add_watch(fd.get(), file.c_str(), IN_MODIFY) == 1);
  auto found = capture::describe_inotify(fd.get(), fdinfo(fd.get()), finder());
  REQUIRE(found);
  REQUIRE(::unlink(file.c_str()) == 0);
  auto deleted = capture::describe_inotify(fd.get(), fdinfo(fd.get()), finder());
  REQUIRE_FALSE(deleted);
  CHECK(deleted.error().message.find("deleted") != std::string::npos);
  auto gone = restore::make_inotify(*found, 0);
  REQUIRE_FALSE(gone);
  CHECK(gone.error().code == Code::kNotFound);
  folder.file("one");
  auto replaced = restore::make_inotify(*found, 0);
  REQUIRE_FALSE(replaced);
  CHECK(replaced.error().code == Code::kMismatch);
}

TEST_CASE("inotify: text that makes no sense is refused") {
  for (const char* text :
       {"inotify wd:x ino:1 sdev:1 mask:1\n", "inotify wd:1 mask:1\n", "inotify \n",
        "inotify wd:1 ino:1 sdev:fff mask:1 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:zz\n"}) {
    UniqueFd fd(::inotify_init1(IN_CLOEXEC));
    CHECK_FALSE(capture::describe_inotify(fd.get(), text, finder()));
  }
}

TEST_CASE("fanotify: flags and marks of files, mounts and file systems come back") {
  Folder folder;
  UniqueFd fd(::fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK, O_RDONLY | O_LARGEFILE));
  if (!fd) {
    ckpt::test::skip("fanotify needs CAP_SYS_ADMIN");
    return;
  }
  auto mark = [&](unsigned flags, uint64_t mask, const char* path) {
    REQUIRE(::fanotify_mark(fd.get(), FAN_MARK_ADD | flags, mask, AT_FDCWD, path) == 0);
  };
  mark(0, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, folder.path.c_str());
  mark(FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY, FAN_MODIFY, folder.path.c_str());
  mark(FAN_MARK_MOUNT, FAN_OPEN_EXEC, "/dev/shm");  // which other tests write to
  mark(FAN_MARK_FILESYSTEM, FAN_CLOSE_WRITE, "/sys");
  auto found = capture::describe_fanotify(fd.get(), fdinfo(fd.get()), finder());
  REQUIRE_MESSAGE(found, found.error().text());
  CHECK(found->marks.size() == 3);
  fd.reset();
  auto made = restore::make_fanotify(*found);
  REQUIRE_MESSAGE(made, made.error().text());
  auto again = capture::describe_fanotify(made->get(), fdinfo(made->get()), finder());
  REQUIRE(again);
  CHECK(*again == *found);
  folder.file("written");
  fanotify_event_metadata event{};
  REQUIRE(::read(made->get(), &event, sizeof event) == sizeof event);
  CHECK((event.mask & FAN_CLOSE_WRITE) != 0);
  UniqueFd opened(event.fd);
}

TEST_CASE("pidfd: of a living process, placed where it was; of one that is gone") {
  UniqueFd own(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  auto found = capture::parse_pidfd(fdinfo(own.get()));
  REQUIRE(found);
  CHECK(found->pid == ::getpid());
  CHECK_FALSE(capture::parse_pidfd("pos:\t0\n"));
  CHECK_FALSE(capture::parse_pidfd("Pid:\t0\n"));

  auto dead = restore::make_dead_pidfd(O_NONBLOCK);
  REQUIRE(dead);
  auto ended = capture::parse_pidfd(fdinfo(dead->get()));
  REQUIRE(ended);
  CHECK(ended->pid == -1);
  CHECK((::fcntl(dead->get(), F_GETFL) & O_NONBLOCK) != 0);
  CHECK(::syscall(SYS_pidfd_send_signal, dead->get(), 0, nullptr, 0) == -1);
  CHECK(errno == ESRCH);

  if (::geteuid() != 0) return ckpt::test::skip("needs root");
  auto area = restore::RestorerArea::create({});
  REQUIRE(area);
  auto child = restore::Child::create(free_pid(), *area);
  REQUIRE(child);
  std::vector<restore::PidfdPlace> places = {{::getpid(), 0, {{200, true}}},
                                             {child->pid(), O_NONBLOCK, {{201, false}, {203, true}}}};
  restore::SyscallBatch first, second;
  restore::open_pidfds(places, first);
  REQUIRE(child->run(first));
  restore::place_pidfds(places, first, 0, 400, second);
  REQUIRE(child->run(second));
  auto described = [&](int fd) {
    auto text = io::read_file(fmt::format("/proc/{}/fdinfo/{}", child->pid(), fd), 1 << 20);
    REQUIRE(text);
    return *text;
  };
  CHECK(capture::parse_pidfd(described(200))->pid == ::getpid());
  CHECK(capture::parse_pidfd(described(201))->pid == child->pid());
  CHECK(described(203).find("flags:\t02004002") != std::string::npos);
  CHECK(described(201).find("flags:\t04002") != std::string::npos);
  CHECK_FALSE(fs::exists(fmt::format("/proc/{}/fd/400", child->pid())));
}
