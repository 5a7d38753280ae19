#include "lib/state/external/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "lib/base/io.h"
#include "lib/base/pipe.h"
#include "lib/state/descriptors/subject.h"

namespace ckpt::restore {

namespace {

using store::Descriptor;
using Placed = std::vector<std::pair<int, store::FdSlot>>;

/// What the caller of ckpt left open, as opposed to what ckpt opened itself: that closes on exec.
bool is_callers(int fd) {
  int flags = ::fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

Placed take_null(const Descriptor& descriptor, Inherited& inherited, Reasons& reasons) {
  const std::string subject = subject_of(descriptor);
  auto null = io::open_file("/dev/null", descriptor.flags & (O_ACCMODE | O_NONBLOCK));
  if (!null) return reasons.add(null.error()), Placed();
  auto source = inherited.keep(std::move(*null), subject);
  if (!source) return reasons.add(source.error()), Placed();
  Placed out;
  for (const auto& slot : descriptor.fds) out.emplace_back(*source, slot);
  return out;
}

/// The reader finds the end, the writer an error, as when the process at the other end has ended.
Placed take_ended(const Descriptor& descriptor, Inherited& inherited, Reasons& reasons) {
  const std::string subject = subject_of(descriptor);
  auto ends = make_pipe(subject, descriptor.flags & O_NONBLOCK);
  if (!ends) return reasons.add(std::move(ends).error()), Placed();
  const bool reads = (descriptor.flags & O_ACCMODE) == O_RDONLY;
  auto source = inherited.keep(std::move(reads ? ends->read : ends->write), subject);
  if (!source) return reasons.add(source.error()), Placed();
  Placed out;
  for (const auto& slot : descriptor.fds) out.emplace_back(*source, slot);
  return out;
}

Placed take_callers(const Descriptor& descriptor, Inherited& inherited, Reasons& reasons) {
  Placed out;
  int first = -1;
  for (const auto& slot : descriptor.fds) {
    if (first < 0 && is_callers(slot.fd)) first = slot.fd;
  }
  if (first < 0) {
    reasons.add(Code::kUsage, fmt::format("{} was {}: ckpt has no open descriptor of that number to give",
                                          subject_of(descriptor), descriptor.external));
    return out;
  }
  for (const auto& slot : descriptor.fds) {
    auto source = inherited.keep_copy(is_callers(slot.fd) ? slot.fd : first, subject_of(descriptor));
    if (!source) return reasons.add(source.error()), out;
    out.emplace_back(*source, slot);
  }
  return out;
}

Placed take_given(const Descriptor& descriptor, int fd, Inherited& inherited, Reasons& reasons) {
  Placed out;
  for (const auto& slot : descriptor.fds) {
    auto source = inherited.keep_copy(fd, subject_of(descriptor));
    if (!source) return reasons.add(source.error()), out;
    out.emplace_back(*source, slot);
  }
  return out;
}

bool becomes_null(const Descriptor& descriptor, const state::ExternalOptions& options) {
  using state::ExternalPipes;
  if (options.given.count(descriptor.external) != 0) return false;
  if (descriptor.kind != store::DescriptorKind::kExternal || !descriptor.external.starts_with("pipe:")) return false;
  const bool as_dumped = options.pipes == ExternalPipes::kFail || options.pipes == ExternalPipes::kEnded;
  return options.pipes == ExternalPipes::kNull || (as_dumped && descriptor.becomes_null);
}

bool is_watched(const store::TreeImage& tree, size_t index) {
  const std::vector<store::FdSlot>& slots = tree.descriptors[index].fds;
  auto leads_there = [&](const store::EpollEntry& entry) {
    if (entry.descriptor >= 0) return static_cast<size_t>(entry.descriptor) == index;
    return std::any_of(slots.begin(), slots.end(), [&](const store::FdSlot& slot) {
      return slot.process == entry.process && slot.fd == entry.target_fd;
    });
  };
  return std::any_of(tree.descriptors.begin(), tree.descriptors.end(), [&](const Descriptor& set) {
    return std::any_of(set.epoll.entries.begin(), set.epoll.entries.end(), leads_there);
  });
}

}  // namespace

void check_external(const store::TreeImage& tree, const state::ExternalOptions& options, Reasons& reasons) {
  for (size_t i = 0; i < tree.descriptors.size(); ++i) {
    const Descriptor& descriptor = tree.descriptors[i];
    if (!becomes_null(descriptor, options) || !is_watched(tree, i)) continue;
    reasons.add(Code::kUnsupported, fmt::format("{} is {}, which an epoll set watches: /dev/null cannot be watched",
                                                subject_of(descriptor), descriptor.external));
    reasons.hint("--external-pipes keep takes ckpt's own descriptor of the same number");
  }
}

Placed take_external(const Descriptor& descriptor, const state::ExternalOptions& options, Inherited& inherited,
                     Reasons& reasons) {
  if (auto given = options.given.find(descriptor.external); given != options.given.end())
    return take_given(descriptor, given->second, inherited, reasons);
  if (becomes_null(descriptor, options)) return take_null(descriptor, inherited, reasons);
  const bool pipe = descriptor.external.starts_with("pipe:");
  if (pipe && options.pipes == state::ExternalPipes::kEnded) return take_ended(descriptor, inherited, reasons);
  if (pipe ? options.pipes == state::ExternalPipes::kKeep : options.terminals)
    return take_callers(descriptor, inherited, reasons);
  reasons.add(Code::kUsage,
              fmt::format("{} is {}, which comes from outside its tree", subject_of(descriptor), descriptor.external));
  reasons.hint(pipe ? "--shell-job takes terminals and outer pipes from ckpt's own descriptors of the same numbers, "
                      "--external-pipes null puts /dev/null in their place"
                    : "--shell-job takes terminals and outer pipes from ckpt's own descriptors of the same numbers");
  return {};
}

}  // namespace ckpt::restore
