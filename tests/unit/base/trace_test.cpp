#include "lib/base/trace.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/worker_pool.h"
#include "tests/support/fixtures.h"

using namespace ckpt;
using nlohmann::json;

namespace {

/// The events of the file, those of one `ph`.
std::vector<json> events(const std::filesystem::path& file, const std::string& kind) {
  auto text = io::read_file(file, 1 << 28);
  REQUIRE(text);
  const json doc = json::parse(*text);
  CHECK(doc.at("displayTimeUnit") == "ms");
  std::vector<json> out;
  for (const json& event : doc.at("traceEvents")) {
    if (event.at("ph") == kind) out.push_back(event);
  }
  return out;
}

std::map<int, std::string> row_names(const std::filesystem::path& file) {
  std::map<int, std::string> out;
  for (const json& event : events(file, "M")) {
    if (event.at("name") == "thread_name") out[event.at("tid")] = event.at("args").at("name");
  }
  return out;
}

json only(const std::vector<json>& all, const std::string& name) {
  auto found = std::find_if(all.begin(), all.end(), [&](const json& event) { return event.at("name") == name; });
  REQUIRE(found != all.end());
  return *found;
}

double begin_of(const json& event) { return event.at("ts"); }
double end_of(const json& event) { return event.at("ts").get<double>() + event.at("dur").get<double>(); }

}  // namespace

TEST_CASE("trace: spans nest, and carry an argument; instants and counters stand between them") {
  test::TempDir dir;
  auto recording = trace::Recording::start(dir.path / "t.json", "test");
  REQUIRE(recording);
  {
    trace::Span outer("outer");
    {
      trace::Span inner("inner");
      inner.bytes(4096);
    }
    trace::instant("now");
    trace::counter("queued", "jobs", 7);
  }
  REQUIRE(recording->write());
  auto spans = events(dir.path / "t.json", "X");
  REQUIRE(spans.size() == 2);
  const json outer = only(spans, "outer"), inner = only(spans, "inner");
  CHECK(outer.at("tid") == inner.at("tid"));
  CHECK(begin_of(outer) >= 0);
  CHECK(begin_of(outer) <= begin_of(inner));
  CHECK(end_of(outer) >= end_of(inner));
  CHECK(inner.at("args").at("bytes") == 4096);
  CHECK_FALSE(outer.contains("args"));
  CHECK(only(events(dir.path / "t.json", "i"), "now").at("s") == "t");
  CHECK(only(events(dir.path / "t.json", "C"), "queued").at("args").at("jobs") == 7);
  struct stat info{};
  REQUIRE(::stat((dir.path / "t.json").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
}

TEST_CASE("trace: names are escaped, and the process has the name it was given") {
  test::TempDir dir;
  auto recording = trace::Recording::start(dir.path / "t.json", "a \"quoted\"\nname \xff");
  REQUIRE(recording);
  { trace::Span span("back\\slash \"and\"\tmore"); }
  REQUIRE(recording->write());
  CHECK(only(events(dir.path / "t.json", "M"), "process_name").at("args").at("name") ==
        "a \"quoted\"\nname \xef\xbf\xbd");
  only(events(dir.path / "t.json", "X"), "back\\slash \"and\"\tmore");
}

TEST_CASE("trace: intervals stand on rows of their own, at the times that were given") {
  test::TempDir dir;
  auto recording = trace::Recording::start(dir.path / "t.json", "test");
  REQUIRE(recording);
  const uint64_t begin = monotonic_us();
  trace::interval(trace::Row::kTarget, "frozen", begin + 1000, begin + 3500);
  trace::interval(trace::Row::kPhases, "copy", begin + 500, begin + 4000);
  REQUIRE(recording->write());
  auto spans = events(dir.path / "t.json", "X");
  const json frozen = only(spans, "frozen"), copy = only(spans, "copy");
  CHECK(frozen.at("dur").get<double>() == doctest::Approx(2500));
  CHECK(begin_of(frozen) - begin_of(copy) == doctest::Approx(500));
  auto rows = row_names(dir.path / "t.json");
  CHECK(rows.at(frozen.at("tid")) == "target");
  CHECK(rows.at(copy.at("tid")) == "phases");
}

TEST_CASE("trace: what threads add is a counter that only grows, to the sum of it all") {
  test::TempDir dir;
  auto recording = trace::Recording::start(dir.path / "t.json", "test");
  REQUIRE(recording);
  constexpr uint64_t kThreads = 4, kTimes = 2000;
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([] {
      for (uint64_t k = 0; k < kTimes; ++k) {
        trace::add("read", "bytes", 3);
        trace::Span span("between");
        trace::add("written", "bytes", 5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(recording->write());
  std::map<std::string, uint64_t> sums;
  double before = 0;
  const auto counters = events(dir.path / "t.json", "C");
  for (const json& event : counters) {
    const uint64_t sum = event.at("args").at("bytes");
    CHECK(sum >= sums[event.at("name")]);
    CHECK(begin_of(event) >= before);
    sums[event.at("name")] = sum, before = begin_of(event);
  }
  CHECK(sums.at("read") == kThreads * kTimes * 3);
  CHECK(sums.at("written") == kThreads * kTimes * 5);
}

TEST_CASE("trace: names that are known only at run time are kept, one copy of each") {
  CHECK(std::string_view(trace::kept("nobody records")).empty());
  test::TempDir dir;
  auto recording = trace::Recording::start(dir.path / "t.json", "test");
  REQUIRE(recording);
  {
    const std::string key = "layers.0.weight";
    trace::Span span(trace::kept(key));
    CHECK(trace::kept(key) == trace::kept(std::string(key)));
  }
  REQUIRE(recording->write());
  only(events(dir.path / "t.json", "X"), "layers.0.weight");
}

TEST_CASE("trace: many threads lose nothing, and threads that follow each other share a row") {
  test::TempDir dir;
  auto recording = trace::Recording::start(dir.path / "t.json", "test");
  REQUIRE(recording);
  constexpr size_t kRounds = 5, kThreads = 8, kSpans = 1000;
  for (size_t round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([] {
        trace::name_thread("busy");
        for (size_t k = 0; k < kSpans; ++k) trace::Span span("step");
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  REQUIRE(recording->write());
  auto spans = events(dir.path / "t.json", "X");
  CHECK(spans.size() == kRounds * kThreads * kSpans);
  std::map<int, std::vector<json>> by_row;
  for (json& span : spans) by_row[span.at("tid")].push_back(span);
  CHECK(by_row.size() <= kThreads);
  auto names = row_names(dir.path / "t.json");
  for (auto& [row, of_row] : by_row) {
    CHECK(names.at(row).rfind("busy ", 0) == 0);
    std::sort(of_row.begin(), of_row.end(), [](const json& a, const json& b) { return begin_of(a) < begin_of(b); });
    for (size_t i = 1; i < of_row.size(); ++i) REQUIRE(begin_of(of_row[i]) >= end_of(of_row[i - 1]) - 0.001);
  }
}

TEST_CASE("trace: what does not fit is counted on the row that lost it") {
  test::TempDir dir;
  auto recording = trace::Recording::start(dir.path / "t.json", "test");
  REQUIRE(recording);
  constexpr size_t kRoom = size_t{1} << 18, kMore = 10;
  std::thread([] {
    trace::name_thread("chatty");
    for (size_t i = 0; i < kRoom + kMore; ++i) trace::instant("word");
  }).join();
  REQUIRE(recording->write());
  auto names = row_names(dir.path / "t.json");
  CHECK(std::any_of(names.begin(), names.end(),
                    [](const auto& row) { return row.second == "chatty 1 (10 events left out)"; }));
}

TEST_CASE("trace: nothing is recorded before and after, and a second recording begins empty") {
  test::TempDir dir;
  { trace::Span span("too early"); }
  CHECK_FALSE(trace::on());
  {
    auto recording = trace::Recording::start(dir.path / "dropped.json", "test");
    REQUIRE(recording);
    trace::Span span("dropped");
  }
  CHECK_FALSE(trace::on());
  CHECK_FALSE(std::filesystem::exists(dir.path / "dropped.json"));
  auto recording = trace::Recording::start(dir.path / "t.json", "test");
  REQUIRE(recording);
  WorkerPool pool(2);
  for (int i = 0; i < 10; ++i) {
    REQUIRE(pool.submit([]() -> Result<void> {
      trace::Span span("step");
      return {};
    }));
  }
  REQUIRE(pool.finish());
  REQUIRE(recording->write());
  { trace::Span span("too late"); }
  auto spans = events(dir.path / "t.json", "X");
  CHECK(spans.size() == 10);
  for (const json& span : spans) CHECK(span.at("name") == "step");
}

TEST_CASE("trace: a file that could not be written is refused at the start, and nothing stays where the end fails") {
  test::TempDir dir;
  auto code_of = [](const std::filesystem::path& path) {
    auto recording = trace::Recording::start(path, "test");
    REQUIRE_FALSE(recording);
    return recording.error().code;
  };
  CHECK(code_of("/dev/null") == Code::kUsage);
  CHECK(code_of(dir.path) == Code::kUsage);
  CHECK(code_of(dir.path / "none" / "t.json") == Code::kNotFound);
  std::filesystem::create_directory(dir.path / "gone");
  auto recording = trace::Recording::start(dir.path / "gone" / "t.json", "test");
  REQUIRE(recording);
  std::filesystem::remove(dir.path / "gone");
  CHECK_FALSE(recording->write());
  auto over = trace::Recording::start(dir.path / "t.json", "test");
  REQUIRE(over);
  std::filesystem::create_directory(dir.path / "t.json");  // came to be meanwhile: no rename over it
  CHECK_FALSE(over->write());
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path), {}) == 1);
}
