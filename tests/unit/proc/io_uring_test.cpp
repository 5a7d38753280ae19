#include "lib/proc/io_uring.h"

#include <doctest/doctest.h>

#include <string>

using namespace ckpt;
using proc::parse_uring_info;

namespace {

/// As Linux 6.18 shows it.
const std::string kIdle =
    "pos:\t0\nflags:\t02000002\nmnt_id:\t17\nino:\t7670979\nSqMask:\t0x7\nSqHead:\t2\nSqTail:\t2\nCachedSqHead:\t2\n"
    "CqMask:\t0xf\nCqHead:\t0\nCqTail:\t1\nCachedCqTail:\t1\nSQEs:\t0\nCQEs:\t1\n    0: user_data:7, res:100, flag:0\n"
    "SqThread:\t-1\nSqThreadCpu:\t-1\nSqTotalTime:\t0\nSqWorkTime:\t0\n";
const std::string kTables =
    "UserFiles:\t3\n    1: /a\\040b\n    2: <none>\nUserBufs:\t2\n    0: 0x562d581650e0/100\n    1: <none>\n"
    "PollList:\n  op=6, task_works=0\n  op=27, task_works=0\nCqOverflowList:\nNAPI:\tdisabled\n";

}  // namespace

TEST_CASE("io_uring: counters, registered files and buffers, what waits") {
  auto info = parse_uring_info(kIdle + kTables);
  REQUIRE(info);
  CHECK(info->sq_entries == 8);
  CHECK(info->cq_entries == 16);
  CHECK(info->submitted == 2);
  CHECK(info->completed == 1);
  CHECK(info->poller == -1);
  CHECK(info->file_slots == 3);
  REQUIRE(info->files.size() == 1);
  CHECK(info->files[0] == std::pair<uint32_t, std::string>(1, "/a b"));
  REQUIRE(info->buffers.size() == 2);
  CHECK(info->buffers[0] == std::pair<uint64_t, uint64_t>(0x562d581650e0, 100));
  CHECK(info->buffers[1] == std::pair<uint64_t, uint64_t>(0, 0));
  CHECK(info->polled == std::vector<int>{6, 27});
  CHECK_FALSE(info->has_overflow);
  CHECK_FALSE(info->has_personalities);
}

TEST_CASE("io_uring: what else there may be") {
  auto info = parse_uring_info("SqMask:\t0x0\nCqMask:\t0x1\nCachedSqHead:\t4294967295\nCachedCqTail:\t4294967290\n"
                               "SqThread:\t77\n"
                               "UserFiles:\t0\nUserBufs:\t0\nPersonalities:\n    1\n\tUid:\t0\t\t0\t\t0\t\t0\n"
                               "PollList:\nCqOverflowList:\n  user_data=3, res=0, flags=0\n");
  REQUIRE(info);
  CHECK(info->sq_entries == 1);
  CHECK(info->submitted == 4294967295u);
  CHECK(info->poller == 77);
  CHECK(info->has_personalities);
  CHECK(info->has_overflow);
  CHECK(info->polled.empty());
}

TEST_CASE("io_uring: a ring that the kernel works on tells nothing, or not all") {
  CHECK(parse_uring_info("pos:\t0\nflags:\t02\n").error().code == Code::kBusy);
  CHECK(parse_uring_info(kIdle).error().code == Code::kBusy);
}

TEST_CASE("io_uring: a text of another form is refused") {
  for (const char* line : {"SqMask:\t0x6\n", "SqMask:\tmany\n", "CqMask:\t0xffffffff\n", "UserFiles:\t1\n    1: /a\n",
                           "UserBufs:\t1\n    0: nothing\n", "UserBufs:\t4000000000\n", "PollList:\n  op=x\n"}) {
    CHECK_MESSAGE(parse_uring_info(kIdle + kTables + line).error().code == Code::kUnsupported, line);
  }
}
