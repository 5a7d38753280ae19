#include "lib/state/labels/capture.h"

#include <unistd.h>

#include <algorithm>

#include "lib/proc/procfs.h"

namespace ckpt::capture {

namespace {

constexpr const char* kFiles[] = {"current",    "exec",        "fscreate",      "keycreate",
                                  "sockcreate", "apparmor/current", "apparmor/exec", "smack/current"};

std::string path_of(int tid, const std::string& name) { return "task/" + std::to_string(tid) + "/attr/" + name; }

/// Those that a module of this kernel answers for: the others cannot be read of anybody.
const std::vector<std::string>& files_here() {
  static const std::vector<std::string> files = [] {
    std::vector<std::string> out;
    const int own = ::getpid();
    for (const char* name : kFiles) {
      if (proc::read_small(own, path_of(own, name))) out.emplace_back(name);
    }
    return out;
  }();
  return files;
}

}  // namespace

std::string parse_label(std::string_view text) {
  constexpr std::string_view kUnconfined = "unconfined";  // AppArmor's
  text = text.substr(0, text.find('\0'));
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return text == kUnconfined ? std::string() : std::string(text);
}

bool tells_labels() { return !files_here().empty(); }

Result<std::vector<store::SecurityLabel>> read_labels(int pid, int tid) {
  std::vector<store::SecurityLabel> out;
  for (const std::string& name : files_here()) {
    auto text = proc::read_small(pid, path_of(tid, name));
    if (!text && text.error().code == Code::kNotFound) return out;  // it has ended since
    if (!text) return std::move(text).error();
    if (std::string value = parse_label(*text); !value.empty()) out.push_back({name, std::move(value)});
  }
  return out;
}

void note_labels(Inventory& found) {
  static const auto own = read_labels(::getpid(), ::getpid());
  if (!own) return;
  for (const store::ProcessImage& process : found.image.processes) {
    const auto other = std::find_if(process.threads.begin(), process.threads.end(),
                                    [](const store::Thread& thread) { return thread.labels != *own; });
    if (process.zombie || other == process.threads.end()) continue;
    const std::string label = other->labels.empty() ? "none" : '"' + other->labels[0].value + '"';
    found.notes.push_back("process " + std::to_string(process.pid) + ": its security label (" + label +
                          ") is not ckpt's own: a restore asks the kernel for it, which may refuse (--drop-labels)");
  }
}

}  // namespace ckpt::capture
