#include "lib/state/pidfds/capture.h"

#include <fmt/format.h>

#include <charconv>

namespace ckpt::capture {

using store::Descriptor;
using store::DescriptorKind;

Result<store::ProcessHandle> parse_pidfd(std::string_view fdinfo) {
  constexpr std::string_view kName = "Pid:\t";
  store::ProcessHandle out;
  for (std::string_view rest = fdinfo; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.substr(0, kName.size()) != kName) continue;
    const std::string_view value = line.substr(kName.size());
    auto [last, error] = std::from_chars(value.data(), value.data() + value.size(), out.pid);
    if (error != std::errc() || last != value.data() + value.size()) break;
    if (out.pid == 0) return fail(Code::kUnsupported, "", "a pidfd of a process in another pid namespace");
    return out;
  }
  return fail(Code::kIo, "fdinfo", "does not tell the process of a pidfd in a form that this ckpt knows");
}

namespace {

/// A process or a thread of it.
bool is_of_tree(const store::TreeImage& tree, int number) {
  for (const store::ProcessImage& process : tree.processes) {
    for (const store::Thread& thread : process.threads) {
      if (thread.tid == number) return true;
    }
  }
  return false;
}

}  // namespace

Result<bool> take_pidfd(DescriptorContext& context, const Place& place, Descriptor& d) {
  CKPT_TRY_ASSIGN(std::string text, DescriptorContext::fdinfo(place));
  auto handle = parse_pidfd(text);
  if (!handle) return context.block(place, handle.error().text()), false;
  if (handle->pid >= 0 && !is_of_tree(context.out.image, handle->pid)) {
    return context.block(place, "a pidfd of a process outside (" + proc::describe_pid(handle->pid) + ")"), false;
  }
  if (handle->pid >= 0 && context.out.find(handle->pid) < 0)
    return context.block(
               place,
               fmt::format("a pidfd of thread {}, which is not the first of its process: not supported", handle->pid)),
           false;
  d.kind = DescriptorKind::kPidfd;
  d.object = static_cast<int>(context.out.image.process_handles.size());
  context.out.image.process_handles.push_back(*handle);
  return true;
}

}  // namespace ckpt::capture
