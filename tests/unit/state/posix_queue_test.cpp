// POSIX message queues made here, described, closed, and made again.
#include "lib/state/posix_queues/capture.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <mqueue.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "lib/base/unique_fd.h"
#include "lib/state/posix_queues/restore.h"

using namespace ckpt;

namespace {

struct Queue {
  explicit Queue(const char* kind) : name(fmt::format("/ckpt-test-{}-{}", kind, ::getpid())) {
    mq_attr attributes{};
    attributes.mq_maxmsg = 8, attributes.mq_msgsize = 100;
    fd = UniqueFd(::mq_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_NONBLOCK, 0640, &attributes));
  }
  ~Queue() { ::mq_unlink(name.c_str()); }
  std::string name;
  UniqueFd fd;
};

std::string link_of(int fd) {
  char text[512];
  ssize_t n = ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), text, sizeof text);
  return {text, n > 0 ? static_cast<size_t>(n) : 0};
}

std::string receive(int fd) {
  char text[100];
  unsigned priority = 0;
  ssize_t n = ::mq_receive(fd, text, sizeof text, &priority);
  return n < 0 ? "nothing" : fmt::format("{} {}", priority, std::string(text, static_cast<size_t>(n)));
}

void send(int fd, const std::string& text, unsigned priority) {
  REQUIRE(::mq_send(fd, text.data(), text.size(), priority) == 0);
}

store::PosixQueue describe(int fd) {
  auto found = capture::describe_posix_queue(fd, link_of(fd), true);
  REQUIRE_MESSAGE(found, found.error().text());
  return *found;
}

}  // namespace

TEST_CASE("posix queue: of one that was unlinked the messages come back in their order, and stay where they were") {
  Queue queue("unlinked");
  if (!queue.fd) return;
  send(queue.fd.get(), "low", 1);
  send(queue.fd.get(), "high one", 9);
  send(queue.fd.get(), "", 9);
  send(queue.fd.get(), "high two", 9);
  REQUIRE(::mq_unlink(queue.name.c_str()) == 0);
  UniqueFd reader(::open(fmt::format("/proc/self/fd/{}", queue.fd.get()).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  CHECK(capture::is_posix_queue(reader.get()));
  auto image = describe(reader.get());
  CHECK(describe(reader.get()) == image);
  CHECK(image.deleted);
  CHECK(image.name == queue.name);
  CHECK(image.waiting == 4);
  CHECK(image.messages.size() == 4);
  auto made = restore::PosixQueueBuilder::make(image);
  REQUIRE_MESSAGE(made, made.error().text());
  auto fd = made->open(O_RDONLY | O_NONBLOCK), writer = made->open(O_WRONLY);
  REQUIRE(fd);
  REQUIRE(writer);
  CHECK(describe(fd->get()) == image);
  CHECK(link_of(fd->get()) == queue.name + " (deleted)");
  CHECK((::fcntl(fd->get(), F_GETFL) & (O_ACCMODE | O_NONBLOCK)) == (O_RDONLY | O_NONBLOCK));
  CHECK((::fcntl(writer->get(), F_GETFL) & (O_ACCMODE | O_NONBLOCK)) == O_WRONLY);
  for (const char* text : {"9 high one", "9 ", "9 high two", "1 low", "nothing"}) {
    CHECK(receive(fd->get()) == text);
    CHECK(receive(reader.get()) == text);
  }
}

TEST_CASE("posix queue: a ckpt that is killed while it looks leaves the messages where they were") {
  Queue queue("killed");
  if (!queue.fd) return;
  for (int i = 0; i < 8; ++i)
    send(queue.fd.get(), std::string(90, static_cast<char>('a' + i)), static_cast<unsigned>(i % 3));
  REQUIRE(::mq_unlink(queue.name.c_str()) == 0);
  auto before = describe(queue.fd.get());
  for (int round = 0; round < 40; ++round) {
    int pid = ::fork();
    if (pid == 0) {
      for (;;) (void)capture::describe_posix_queue(queue.fd.get(), link_of(queue.fd.get()), true);
    }
    ::usleep(static_cast<useconds_t>(round * 97 % 3000));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    ::usleep(5000);  // a helper finishes what it began
  }
  CHECK(describe(queue.fd.get()) == before);
}

TEST_CASE("posix queue: one with a name is opened as it stands, and made when it is missing and was empty") {
  Queue queue("named");
  if (!queue.fd) return;
  REQUIRE(::fchmod(queue.fd.get(), 0604) == 0);
  auto empty = describe(queue.fd.get());
  CHECK_FALSE(empty.deleted);
  CHECK(empty.mode == 0604);
  send(queue.fd.get(), "stays", 2);
  auto image = describe(queue.fd.get());
  CHECK(image.waiting == 1);
  CHECK(image.messages.empty());
  auto made = restore::PosixQueueBuilder::make(image);
  REQUIRE(made);
  auto fd = made->open(O_RDWR | O_NONBLOCK);
  REQUIRE(fd);
  CHECK(receive(fd->get()) == "2 stays");
  REQUIRE(::mq_unlink(queue.name.c_str()) == 0);
  auto gone = restore::PosixQueueBuilder::make(image);
  REQUIRE_FALSE(gone);
  CHECK(gone.error().code == Code::kNotFound);
  auto again = restore::PosixQueueBuilder::make(empty);
  REQUIRE(again);
  fd = again->open(O_RDWR | O_NONBLOCK);
  REQUIRE(fd);
  CHECK(describe(fd->get()) == empty);
  auto other = image;
  other.max_messages = 9;
  CHECK_FALSE(restore::PosixQueueBuilder::make(other));
  for (auto change : {+[](store::PosixQueue& q) { q.mode ^= 0200; }, +[](store::PosixQueue& q) { ++q.uid; },
                      +[](store::PosixQueue& q) { ++q.gid; }}) {
    auto taken = empty;
    change(taken);
    auto refused = restore::PosixQueueBuilder::make(taken);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::kMismatch);
  }
  other.name = "/";
  CHECK_FALSE(restore::PosixQueueBuilder::make(other));
}

TEST_CASE("posix queue: who waits to be notified is refused; a file is no queue") {
  Queue queue("notified");
  if (!queue.fd) return;
  sigevent event{};
  event.sigev_notify = SIGEV_NONE;
  REQUIRE(::mq_notify(queue.fd.get(), &event) == 0);
  auto found = capture::describe_posix_queue(queue.fd.get(), link_of(queue.fd.get()), true);
  REQUIRE_FALSE(found);
  CHECK(found.error().code == Code::kUnsupported);
  UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  CHECK_FALSE(capture::is_posix_queue(null.get()));
}
