#include "lib/base/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "lib/base/io.h"
#include "lib/base/json_text.h"
#include "lib/base/replace_file.h"

namespace ckpt::trace {

namespace fs = std::filesystem;

namespace {

enum class Kind : uint8_t { kSpan, kInstant, kCounter, kAdded };

struct Event {
  const char* name;
  const char* label;  ///< of `value`; null: there is none
  uint64_t begin_ns, duration_ns, value;
  Kind kind;
  Row row;
};

/// Some 12 MiB of addresses a thread; memory is taken as events come.
constexpr size_t kEventsPerThread = size_t{1} << 18;
/// What is added to a counter within this time of one that is among the latest events becomes one with it.
constexpr uint64_t kAddedWithin = 2'000'000;
constexpr size_t kLatest = 6;

/// The events of one thread after another. Written by the thread that has it, read when the recording ends.
struct Track {
  const char* name = "";
  unsigned number = 0;  ///< among those of the same name, from 1
  bool taken = false;   ///< guarded by the registry's mutex
  Event* events = nullptr;
  std::atomic<size_t> used{0}, dropped{0};
};

struct Registry {
  std::mutex mutex;
  std::deque<Track> tracks;
  std::set<std::string, std::less<>> names;  ///< of `kept`
};

/// Never destroyed: threads end after main does.
Registry& registry() {
  static auto* the_one = new Registry;
  return *the_one;
}

Event* map_events() {
  void* at = ::mmap(nullptr, kEventsPerThread * sizeof(Event), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<Event*>(at);
}

/// A free track of that name, else a new one.
Track* take_track(const char* name) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  unsigned number = 1;
  for (Track& track : all.tracks) {
    if (std::strcmp(track.name, name) != 0) continue;
    if (!track.taken) {
      track.taken = true;
      return &track;
    }
    ++number;
  }
  Track& track = all.tracks.emplace_back();
  track.name = name, track.number = number, track.taken = true, track.events = map_events();
  return &track;
}

void give_back(Track* track) {
  if (track == nullptr) return;
  std::lock_guard lock(registry().mutex);
  track->taken = false;
}

/// The calling thread's name and, from its first event on, its track.
struct Mine {
  const char* name = "thread";
  Track* track = nullptr;
  ~Mine() { give_back(track); }
};
thread_local Mine t_mine;

void record(const Event& event) {
  if (t_mine.track == nullptr) t_mine.track = take_track(t_mine.name);
  Track& track = *t_mine.track;
  const size_t at = track.used.load(std::memory_order_relaxed);
  if (track.events == nullptr || at == kEventsPerThread) {
    track.dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  track.events[at] = event;
  track.used.store(at + 1, std::memory_order_release);
}

/// Whether one of the thread's latest events has taken it.
bool added_to_latest(Track& track, const Event& event) {
  const size_t used = track.used.load(std::memory_order_relaxed);
  if (track.events == nullptr) return false;
  for (size_t i = used; i-- > used - std::min(used, kLatest);) {
    Event& before = track.events[i];
    if (before.kind != Kind::kAdded || before.name != event.name) continue;
    if (event.begin_ns - before.begin_ns > kAddedWithin) return false;
    before.value += event.value;
    return true;
  }
  return false;
}

/// The trace's text, written as it is made.
class Output {
 public:
  Output(int fd, std::string subject) : fd_(fd), subject_(std::move(subject)) {}

  Result<void> add(std::string_view object) {
    text_ += empty_ ? "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" : ",\n";
    text_ += object;
    empty_ = false;
    return text_.size() < kFlushAt ? Result<void>() : flush();
  }
  Result<void> finish() {
    text_ += "\n]}\n";
    return flush();
  }

 private:
  static constexpr size_t kFlushAt = size_t{1} << 20;
  Result<void> flush() {
    CKPT_TRY(io::write_all(fd_, std::as_bytes(std::span(text_)), subject_));
    text_.clear();
    return {};
  }

  int fd_;
  std::string subject_, text_;
  bool empty_ = true;
};

// Numbers of rows in the file: those without a thread stand above the threads.
constexpr int kPhasesRow = 1, kTargetRow = 2, kFirstThreadRow = 3;

int row_of(Row row, int thread_row) {
  return row == Row::kPhases ? kPhasesRow : row == Row::kTarget ? kTargetRow : thread_row;
}

std::string describe(const char* what, int pid, int row, const char* member, const std::string& value) {
  return fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"{}":{}}}}})", what, pid, row, member, value);
}

Result<void> describe_row(Output& out, int pid, int row, const std::string& name) {
  CKPT_TRY(out.add(describe("thread_name", pid, row, "name", json_string(name))));
  return out.add(describe("thread_sort_index", pid, row, "sort_index", std::to_string(row)));
}

/// Microseconds with three decimals, from the recording's begin; what began before it has a negative time.
std::string us(uint64_t ns, uint64_t begin_ns) {
  return fmt::format("{:.3f}", static_cast<double>(static_cast<int64_t>(ns - begin_ns)) / 1e3);
}

std::string text_of(const Event& event, int pid, int row, uint64_t begin_ns) {
  std::string args =
      event.label == nullptr ? "" : fmt::format(R"(,"args":{{{}:{}}})", json_string(event.label), event.value);
  std::string out = fmt::format(R"("name":{},"pid":{},"tid":{},"ts":{}{}}})", json_string(event.name), pid,
                                row_of(event.row, row), us(event.begin_ns, begin_ns), args);
  switch (event.kind) {
    case Kind::kSpan: return fmt::format(R"({{"ph":"X","dur":{},)", us(event.duration_ns, 0)) + out;
    case Kind::kInstant: return R"({"ph":"i","s":"t",)" + out;
    case Kind::kCounter:
    case Kind::kAdded: break;
  }
  return R"({"ph":"C",)" + out;
}

/// The sums, by time.
Result<void> write_sums(Output& out, int pid, std::vector<Event> added, uint64_t begin_ns) {
  std::stable_sort(added.begin(), added.end(), [](const Event& a, const Event& b) { return a.begin_ns < b.begin_ns; });
  std::map<std::string_view, uint64_t> sums;
  for (Event& event : added) {
    event.value = sums[event.name] += event.value;
    CKPT_TRY(out.add(text_of(event, pid, kPhasesRow, begin_ns)));
  }
  return {};
}

Result<void> write_events(Output& out, const std::string& process_name, uint64_t begin_ns) {
  const int pid = ::getpid();
  CKPT_TRY(out.add(describe("process_name", pid, 0, "name", json_string(process_name))));
  CKPT_TRY(describe_row(out, pid, kPhasesRow, "phases"));
  CKPT_TRY(describe_row(out, pid, kTargetRow, "target"));
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  int row = kFirstThreadRow;
  std::vector<Event> added;
  for (const Track& track : all.tracks) {
    const size_t used = track.used.load(std::memory_order_acquire),
                 dropped = track.dropped.load(std::memory_order_relaxed);
    if (used == 0 && dropped == 0) continue;
    CKPT_TRY(describe_row(out, pid, row,
                          fmt::format("{} {}{}", track.name, track.number,
                                      dropped == 0 ? "" : fmt::format(" ({} events left out)", dropped))));
    for (const Event& event : std::span(track.events, used)) {
      if (event.kind == Kind::kAdded) added.push_back(event);
      else CKPT_TRY(out.add(text_of(event, pid, row, begin_ns)));
    }
    ++row;
  }
  CKPT_TRY(write_sums(out, pid, std::move(added), begin_ns));
  return out.finish();
}

}  // namespace

uint64_t internal::now_ns() {
  timespec ts{};
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(ts.tv_nsec);
}

void Span::end() {
  if (name_ == nullptr) return;
  record({name_, label_, begin_ns_, internal::now_ns() - begin_ns_, value_, Kind::kSpan, Row::kThread});
  name_ = nullptr;
}

void interval(Row row, const char* name, uint64_t begin_us, uint64_t end_us) {
  if (on()) record({name, nullptr, begin_us * 1000, (end_us - begin_us) * 1000, 0, Kind::kSpan, row});
}

uint64_t phase(Stopwatch& watch, const char* name) {
  const uint64_t begin = watch.started_us(), took = watch.lap_us();
  interval(Row::kPhases, name, begin, begin + took);
  return took;
}

void instant(const char* name) {
  if (on()) record({name, nullptr, internal::now_ns(), 0, 0, Kind::kInstant, Row::kThread});
}

void counter(const char* name, const char* unit, uint64_t value) {
  if (on()) record({name, unit, internal::now_ns(), 0, value, Kind::kCounter, Row::kThread});
}

void add(const char* name, const char* unit, uint64_t more) {
  if (!on()) return;
  const Event event{name, unit, internal::now_ns(), 0, more, Kind::kAdded, Row::kThread};
  if (t_mine.track == nullptr || !added_to_latest(*t_mine.track, event)) record(event);
}

const char* kept(std::string_view name) {
  if (!on()) return "";
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  auto found = all.names.find(name);
  if (found == all.names.end()) found = all.names.emplace(name).first;
  return found->c_str();
}

void name_thread(const char* name) {
  if (t_mine.track != nullptr && std::strcmp(t_mine.name, name) != 0) give_back(std::exchange(t_mine.track, nullptr));
  t_mine.name = name;
}

void prepare_thread() {
  if (on() && t_mine.track == nullptr) t_mine.track = take_track(t_mine.name);
}

Recording::Recording(fs::path path, std::string process_name)
    : path_(std::move(path)), process_name_(std::move(process_name)) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  for (Track& track : all.tracks) track.used = 0, track.dropped = 0;
  all.names.clear();
  begin_ns_ = internal::now_ns();
  internal::g_on = true;
}

Recording::Recording(Recording&& other) noexcept
    : path_(std::move(other.path_)), process_name_(std::move(other.process_name_)), begin_ns_(other.begin_ns_),
      active_(std::exchange(other.active_, false)) {}

Recording::~Recording() {
  if (active_) internal::g_on = false;
}

Result<Recording> Recording::start(const fs::path& path, std::string process_name) {
  std::error_code ec;
  fs::path whole = fs::absolute(path, ec).lexically_normal();
  // A rename would put a file in the place of a device or a pipe.
  const fs::file_status status = fs::symlink_status(whole, ec);
  if (fs::exists(status) && !fs::is_regular_file(status))
    return fail(Code::kUsage, path.string(), "exists and is not a regular file");
  if (!whole.has_filename()) return fail(Code::kUsage, path.string(), "is not the name of a file");
  if (::access(whole.parent_path().c_str(), W_OK | X_OK) != 0) return sys_error(path.string(), "cannot be created");
  return Recording(std::move(whole), std::move(process_name));
}

Result<void> Recording::write() {
  internal::g_on = false;
  return io::replace_file(path_,
                          [&](int fd) {
                            Output out(fd, path_.string());
                            return write_events(out, process_name_, begin_ns_);
                          },
                          {0600, false});
}

}  // namespace ckpt::trace
