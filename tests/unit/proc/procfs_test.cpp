#include "lib/proc/procfs.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "lib/proc/pagemap.h"

using namespace ckpt;
using namespace ckpt::proc;

TEST_CASE("stat: a name with blanks and parentheses ends at the last one") {
  auto stat =
      parse_stat("42 (a) b) (c)) S 7 42 40 34816 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345 0 0 0 1000 2000 3000\n");
  REQUIRE(stat);
  CHECK(stat->pid == 42);
  CHECK(stat->comm == "a) b) (c)");
  CHECK(stat->state == 'S');
  CHECK(stat->parent == 7);
  CHECK(stat->session == 40);
  CHECK(stat->terminal == 34816);
  CHECK(stat->start_time == 12345);
  CHECK(stat->start_code == 1000);
  CHECK(stat->minor_faults == 1);
  CHECK_FALSE(parse_stat(""));
  CHECK_FALSE(parse_stat("42 (a S 7"));
  CHECK_FALSE(parse_stat("x (a) S 7"));
}

TEST_CASE("maps: names with blanks, a newline in a name, flags of smaps") {
  auto maps = parse_maps(
      "7f00-8f00 rw-p 00001000 fe:01 77                         /tmp/a b\\012c (deleted)\n"
      "Size:                  4 kB\n"
      "VmFlags: rd wr mr dc \n"
      "ffff000-fffff00 r-xs 00000000 00:00 0 \n");
  REQUIRE(maps);
  REQUIRE(maps->size() == 2);
  CHECK((*maps)[0].name == "/tmp/a b\nc (deleted)");
  CHECK((*maps)[0].prot == (PROT_READ | PROT_WRITE));
  CHECK((*maps)[0].offset == 4096);
  CHECK((*maps)[0].has_flag("dc"));
  CHECK_FALSE((*maps)[0].has_flag("wf"));
  CHECK((*maps)[1].shared);
  CHECK((*maps)[1].name.empty());
  CHECK((*maps)[0].flags == "rdwrmrdc");
  CHECK((*maps)[0].device == makedev(0xfe, 1));
  CHECK((*maps)[0].inode == 77);
  CHECK_FALSE(parse_maps("7f00 rw-p 0 0:0 0\n"));
  CHECK_FALSE(parse_maps("7f00-8f00 rw-p 0 0:0\n"));
  CHECK_FALSE(parse_maps("7f00-8f00 rw-p 0 0:0 7x\n"));
  CHECK_FALSE(parse_maps("7f00-8f00 rw-\n"));
  CHECK_FALSE(parse_maps("7f00-8f00 rw-p 0 0:0 0\nVmFlags: rd wrm \n"));
  CHECK_FALSE(parse_maps("7f00-8f00 rw-p 0 0:0 0\nVmFlags: rd w\n"));
  CHECK_FALSE(parse_maps("7f00-zz00 rw-p 0 0:0 0\n"));
}

TEST_CASE("smaps: flags as maps has the mappings, whatever the lengths of the lines between them") {
  constexpr size_t kPage = 4096, kHuge = size_t{1} << 47;
  // Its size has more digits than columns.
  void* large = ::mmap(nullptr, kHuge / 4, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* small = ::mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(small != MAP_FAILED);
  REQUIRE(::madvise(small, kPage, MADV_DONTDUMP) == 0);
  // Of a process that stands still: this one's own allocator maps memory between the two.
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  REQUIRE(::waitpid(child, nullptr, WUNTRACED) == child);
  auto plain = read_maps(child, false), with_flags = read_maps(child, true, plain ? plain->size() : 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  REQUIRE(plain);
  REQUIRE(with_flags);
  REQUIRE(plain->size() == with_flags->size());
  for (size_t i = 0; i < plain->size(); ++i) {
    const Vma &a = (*plain)[i], &b = (*with_flags)[i];
    CHECK(a.start == b.start);
    CHECK(a.end == b.end);
    CHECK(a.name == b.name);
    CHECK(a.has_flag("rd") == false);
    if (a.name != "[vsyscall]") CHECK(b.has_flag("rd") == ((b.prot & PROT_READ) != 0));
    if (b.start == reinterpret_cast<uint64_t>(small)) CHECK(b.has_flag("dd"));
  }
  if (large != MAP_FAILED) ::munmap(large, kHuge / 4);
  ::munmap(small, kPage);
}

TEST_CASE("fdinfo: an epoll set's targets, a timerfd's times") {
  auto epoll = parse_fdinfo(
      "pos:\t0\nflags:\t02000002\nmnt_id:\t9\ntfd:        5 events:       1d data: ffffffffffffffff  pos:0 ino:61af "
      "sdev:7\n");
  REQUIRE(epoll);
  REQUIRE(epoll->epoll.size() == 1);
  CHECK(epoll->epoll[0].fd == 5);
  CHECK(epoll->epoll[0].events == 0x1d);
  CHECK(epoll->epoll[0].data == ~0ull);
  auto timer = parse_fdinfo("clockid: 1\nticks: 3\nsettime flags: 01\nit_value: (0, 49406829)\nit_interval: (1, 5)\n");
  REQUIRE(timer);
  CHECK(timer->timer_clock == 1);
  CHECK(timer->timer_ticks == 3);
  CHECK(timer->timer_value_ns == 49406829);
  CHECK(timer->timer_interval_ns == 1'000'000'005);
  CHECK_FALSE(parse_fdinfo("it_value: (0 49406829)\n"));
}

TEST_CASE("timers: signal, thread id and clock") {
  auto timers = parse_timers("ID: 3\nsignal: 34/00000000deadbeef\nnotify: signal/tid.77\nClockID: 1\n");
  REQUIRE(timers);
  REQUIRE(timers->size() == 1);
  CHECK(timers->at(0).id == 3);
  CHECK(timers->at(0).signo == 34);
  CHECK(timers->at(0).sigval == 0xdeadbeef);
  CHECK(timers->at(0).notify == 4);
  CHECK(timers->at(0).tid == 77);
  CHECK_FALSE(parse_timers("signal: 34/0\n"));
}

TEST_CASE("pagemap: the scan and the old interface find the same populated pages") {
  constexpr size_t kPages = 64, kPage = 4096;
  char* memory =
      static_cast<char*>(::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ::madvise(memory, kPages * kPage, MADV_NOHUGEPAGE);
  for (size_t page : {0, 1, 2, 10, 63}) memory[page * kPage] = 1;
  const uint64_t start = reinterpret_cast<uint64_t>(memory), end = start + kPages * kPage;
  for (bool legacy : {false, true}) {
    auto pagemap = Pagemap::open(::getpid(), legacy);
    REQUIRE(pagemap);
    auto regions = pagemap->scan(start, end);
    REQUIRE(regions);
    REQUIRE(regions->size() == 3);
    CHECK(regions->at(0).start == start);
    CHECK(regions->at(0).end == start + 3 * kPage);
    CHECK(regions->at(1).start == start + 10 * kPage);
    CHECK(regions->at(2).end == end);
    for (const PageRegion& region : *regions) {
      CHECK((region.categories & page::kWritten) != 0);
      CHECK((region.categories & page::kFile) == 0);
    }
  }
  ::munmap(memory, kPages * kPage);
}

TEST_CASE("procfs: status: a name with the kernel's escapes, the state, the sets of signals") {
  auto status = parse_status(
      "Name:\ta\\\\b\\nc\nState:\tt (tracing stop)\nTgid:\t12\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000000002\n");
  REQUIRE(status);
  CHECK(status->comm == "a\\b\nc");
  CHECK(status->state == 't');
  CHECK(status->tgid == 12);
  CHECK(status->ignored == 0x1000);
  CHECK(status->caught == 2);
  CHECK_FALSE(status->has_pinned_pages);
  CHECK(parse_status("VmPin:\t      32 kB\n")->has_pinned_pages);
  CHECK_FALSE(parse_status("VmPin:\t       0 kB\n")->has_pinned_pages);
  CHECK_FALSE(parse_status("SigCgt:\tnone\n"));
}
