#include "cli/progress.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <string>

using namespace ckpt::cli;

namespace {

/// What a Progress wrote while `work` used it.
template <class Work>
std::string printed(Progress::Form form, bool notes, Work work) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  {
    Progress progress(form, notes, file);
    work(progress);
  }
  std::string out(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  REQUIRE(std::fread(out.data(), 1, out.size(), file) == out.size());
  std::fclose(file);
  return out;
}

void wait_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

TEST_CASE("progress text: bytes, total, share, rate and time left, as far as they are known") {
  CHECK(progress_text({"copy", 1 << 30, uint64_t{4} << 30, 2'000'000}) ==
        "copy  1.00 GiB of 4.00 GiB  25%  512 MiB/s  6 s left");
  CHECK(progress_text({"hash", 1 << 20, 0, 1'000'000}) == "hash  1.00 MiB  1.00 MiB/s");
  CHECK(progress_text({"sync", 0, 0, 5}) == "sync");
  CHECK(progress_text({"copy", 0, 1000, 0}) == "copy  0 B of 0.98 KiB  0%");
  CHECK(progress_text({"copy", 1 << 20, uint64_t{1} << 40, 1'000'000}).find("min left") != std::string::npos);
  CHECK(progress_text({"a\x1b[2Jb", 0, 0, 0}) == "a\\x1b[2Jb");
}

TEST_CASE("progress text: the rate is that of the last seconds, and a stall has none") {
  CHECK(progress_text({"copy", 1 << 30, uint64_t{4} << 30, 2'000'000, 64 << 20, 1'000'000}) ==
        "copy  1.00 GiB of 4.00 GiB  25%  64.0 MiB/s  48 s left");
  CHECK(progress_text({"copy", 1 << 30, uint64_t{4} << 30, 2'000'000, 0, 3'000'000}) ==
        "copy  1.00 GiB of 4.00 GiB  25%");
}

TEST_CASE("progress text: on a narrow terminal whole fields are left out, the least telling first") {
  const PhaseState state{"copy", 1 << 30, uint64_t{4} << 30, 2'000'000};
  CHECK(progress_text(state, 80) == "copy  1.00 GiB of 4.00 GiB  25%  512 MiB/s  6 s left");
  CHECK(progress_text(state, 45) == "copy  1.00 GiB of 4.00 GiB  25%  6 s left");
  CHECK(progress_text(state, 40) == "copy  1.00 GiB  25%  6 s left");
  CHECK(progress_text(state, 20) == "copy  25%  6 s left");
  CHECK(progress_text(state, 10) == "copy  25%");
  CHECK(progress_text(state, 6) == "copy");
  CHECK(progress_text(state, 3) == "...");
}

TEST_CASE("elide: never wider than asked, and a character is never cut in two") {
  CHECK(elide("abcdef", 6) == "abcdef");
  CHECK(elide("abcdefg", 6) == "abc...");
  CHECK(elide("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 4) == "\xc3\xa9...");
  CHECK(elide("abc", 2) == "..");
  CHECK(elide("abc", 0).empty());
}

TEST_CASE("progress line: silent for a quarter second, then overwriting, taken away at the end") {
  CHECK(printed(Progress::Form::kLine, true, [](Progress& p) {
          p.begin("copy", 100);
          p.advance(100);
        }).empty());
  std::string out = printed(Progress::Form::kLine, true, [](Progress& p) {
    p.begin("copy", 100);
    p.advance(50);
    wait_ms(600);
  });
  CHECK(out.find("\rcopy  50 B of 100 B  50%") == 0);
  CHECK(out.find('\n') == std::string::npos);
  CHECK(out.substr(out.size() - 4) == "\r\033[K");
}

TEST_CASE("progress line: a hidden one comes back with the next byte, not before") {
  std::string out = printed(Progress::Form::kLine, true, [](Progress& p) {
    p.begin("copy", 100);
    wait_ms(500);
    p.hide();
    wait_ms(300);
  });
  CHECK(out.substr(out.size() - 4) == "\r\033[K");
  CHECK(out.rfind("copy") < out.size() - 4);
}

TEST_CASE("notes are printed above the line, escaped, in every form but under --quiet") {
  auto note = [](Progress& p) { p.note("odd\nname"); };
  CHECK(printed(Progress::Form::kSilent, true, note) == "note: odd\\x0aname\n");
  CHECK(printed(Progress::Form::kPlain, true, note) == "note: odd\\x0aname\n");
  CHECK(printed(Progress::Form::kSilent, false, note).empty());
  CHECK(printed(Progress::Form::kJson, true, note) ==
        "{\"schema\":\"ckpt.progress/1\",\"event\":\"note\",\"text\":\"odd\\nname\"}\n");
}

TEST_CASE("progress as JSON lines: one when a phase begins, then one a second") {
  std::string out = printed(Progress::Form::kJson, true, [](Progress& p) {
    p.begin("copy", 100);
    p.advance(30);
    wait_ms(1300);
  });
  CHECK(out.find("{\"schema\":\"ckpt.progress/1\",\"event\":\"begin\",\"phase\":\"copy\",\"bytes\":0,\"total\":100,") ==
        0);
  CHECK(out.find("\"event\":\"progress\",\"phase\":\"copy\",\"bytes\":30,\"total\":100") != std::string::npos);
}

TEST_CASE("progress: a request by signal prints one line in the quiet forms, too") {
  std::string out = printed(Progress::Form::kSilent, true, [](Progress& p) {
    p.begin("copy", 100);
    p.advance(10);
    Progress::request_line();
    wait_ms(300);
  });
  CHECK(out.find("copy  10 B of 100 B  10%") == 0);
  CHECK(out.find('\n') == out.size() - 1);
}
