#include "cli/job_images.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/retention.h"
#include "lib/base/clock.h"
#include "lib/base/text.h"

namespace ckpt::cli {

ImageFigures figures_of(const std::string& document) {
  const auto doc = nlohmann::json::parse(document, nullptr, false);
  auto number = [&](const char* name) { return doc.is_object() ? doc.value(name, uint64_t{0}) : 0; };
  const uint64_t frozen = number("frozen_us");
  return {frozen, frozen + number("stops_us"), number("bytes_written"), number("target_waited_us"),
          doc.is_object() ? doc.value("fell_back", std::string()) : std::string()};
}

void JobImages::wait(int fd, std::optional<uint64_t> us) const {
  pollfd ready[] = {{signals_.fd(), POLLIN, 0}, {fd, POLLIN, 0}};
  // The clock stands still while a machine sleeps: look again.
  constexpr uint64_t kMost = uint64_t{3600} * 1'000'000;
  const timespec limit = timespec_of((std::min(us.value_or(kMost), kMost) + 999) * 1000);
  ::ppoll(ready, fd >= 0 ? 2 : 1, &limit, nullptr);
}

void JobImages::reap_strangers(std::initializer_list<pid_t> ours) {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (std::find(ours.begin(), ours.end(), info.si_pid) != ours.end()) return;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

Result<CkptRun> JobImages::start_run(const char* verb, int pid, const ImageFolder::Next& next) const {
  std::vector<std::string> words = {verb, "-p", std::to_string(pid), "-f", next.dir.string()};
  if (next.prev.empty())
    words.emplace_back("--no-prev");
  else
    words.insert(words.end(), {"--prev", next.prev.string()});
  for (std::string& more : settings_.job.for_dump()) words.push_back(std::move(more));
  return CkptRun::start(words, signals_);
}

std::string JobImages::text_of(const ImageFolder::Next& next, const ImageFigures& figures) {
  const std::string needs = !figures.fell_back.empty() ? " (full: " + figures.fell_back + ")"
                            : next.prev.empty()        ? ""
                                                       : " (needs " + next.prev.filename().string() + ")";
  return fmt::format("image {}{}: {}, stood still for {}", escape_for_terminal(next.dir.string()), needs,
                     human_bytes(figures.bytes), human_us(figures.stall_us));
}

void JobImages::tell_failed(int pid, const Error& error) {
  events_.tell("failed", "no image: " + escape_for_terminal(error.text()), "pid", pid, "code", exit_code(error.code),
               "message", error.text());
}

void JobImages::remove_superfluous() {
  if (!settings_.rules.any()) return;
  const Cancel never;
  std::vector<store::RemovedImage> removed;
  auto done =
      apply_retention({folder_.path(), settings_.rules, schedule::Order::kNumber}, removed, context_.progress, never);
  if (!done) context_.progress.note("retention: " + done.error().text());
  for (const store::RemovedImage& image : removed) {
    events_.tell("removed", "removed " + escape_for_terminal(image.dir.string()), "image", image.dir.string(), "bytes",
                 image.bytes);
  }
}

}  // namespace ckpt::cli
