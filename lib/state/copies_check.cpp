#include "lib/state/copies_check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <linux/netlink.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "lib/proc/socket_name.h"
#include "lib/state/descriptors/subject.h"
#include "lib/state/files/contents.h"
#include "lib/state/files/file_state.h"
#include "lib/state/files/restore.h"

namespace ckpt::restore {

namespace {

using store::Descriptor;
using store::DescriptorKind;

bool has_own_output(const Descriptor& descriptor, const CopiesOptions& options) {
  return std::any_of(options.outputs.begin(), options.outputs.end(),
                     [&](int number) { return descriptor.is_open_as(0, number); });
}

/// Writes there by several are either in order, or agreed upon.
void check_written(const store::FileIdentity& file, const std::string& what, bool appends, const CopiesOptions& options,
                   Reasons& reasons, ProgressSink& progress) {
  if (file.deleted || !S_ISREG(file.mode)) return;
  const bool shared = std::any_of(options.shared_files.begin(), options.shared_files.end(), [&](const auto& pattern) {
    return pattern == file.path || ::fnmatch(pattern.c_str(), file.path.c_str(), 0) == 0;
  });
  if (shared) return;
  if (appends) return progress.note(fmt::format("{}: all copies append to it", file.path));
  reasons.add(Code::kUnsupported,
              fmt::format("{} is {}, open for writing: the copies would write over each other", what, file.path));
  reasons.hint("--share-file FILE lets them; --output N=FILE-{copy} gives each a file of its own as descriptor N");
}

void check_file(const store::TreeImage& tree, const Descriptor& descriptor, const CopiesOptions& options,
                Reasons& reasons, ProgressSink& progress) {
  const store::FileIdentity& file = tree.files[static_cast<size_t>(descriptor.file)];
  if (descriptor.kind == DescriptorKind::kFifo)
    reasons.add(Code::kUnsupported, fmt::format("{} is the named pipe {}, of which there is one for all of them",
                                                restore::subject_of(descriptor), file.path));
  else if ((descriptor.flags & O_ACCMODE) != O_RDONLY)
    check_written(file, restore::subject_of(descriptor), (descriptor.flags & O_APPEND) != 0, options, reasons,
                  progress);
}

bool is_inet(const store::Socket& socket) { return socket.family == AF_INET || socket.family == AF_INET6; }

/// What a socket is, where only one of the copies can be that; empty: they all can. They share their host's network.
std::string only_once(const store::Socket& socket) {
  const std::string name = proc::name_text(socket.name);
  if (socket.tcp.state != 0)
    return fmt::format("is the TCP connection {} -> {}", name, proc::name_text(socket.peer_name));
  if (is_inet(socket) && proc::port_of(socket.name) != 0 && socket.state != store::SocketState::kClosed)
    return fmt::format("{} {}", socket.state == store::SocketState::kListening ? "listens on" : "is bound to", name);
  if (socket.family == AF_UNIX && !proc::unix_name(socket.name).empty() && !socket.file.deleted)
    return "is bound to " + name;
  const uint32_t port = socket.family == AF_NETLINK ? proc::address_of<sockaddr_nl>(socket.name).nl_pid : 0;
  return port != 0 ? fmt::format("is a netlink socket of port {}", port) : std::string();
}

void check_socket(const store::Socket& socket, const std::string& subject, Reasons& reasons) {
  const std::string what = only_once(socket);
  if (!what.empty())
    reasons.add(Code::kUnsupported, fmt::format("{} {}, which one of the copies could have", subject, what));
}

void check_locks(const store::TreeImage& tree, const Descriptor& descriptor, Reasons& reasons) {
  for (const store::FileLock& lock : descriptor.locks) {
    const bool is_lease = lock.kind == store::LockKind::kLease;
    if (!lock.write && !is_lease) continue;
    const std::string path = descriptor.file < 0 ? "" : tree.files[static_cast<size_t>(descriptor.file)].path;
    reasons.add(Code::kUnsupported,
                fmt::format("{} has a {} of {}, which one of the copies could have", restore::subject_of(descriptor),
                            is_lease ? "lease" : "write lock", path));
  }
}

void check_descriptor(const store::TreeImage& tree, const Descriptor& descriptor, const CopiesOptions& options,
                      Reasons& reasons, ProgressSink& progress) {
  if (has_own_output(descriptor, options)) return;
  check_locks(tree, descriptor, reasons);
  const std::string subject = restore::subject_of(descriptor);
  if (descriptor.kind == DescriptorKind::kFile || descriptor.kind == DescriptorKind::kFifo)
    check_file(tree, descriptor, options, reasons, progress);
  else if (descriptor.kind == DescriptorKind::kSocket)
    check_socket(tree.sockets[static_cast<size_t>(descriptor.object)], subject, reasons);
  else if (descriptor.kind == DescriptorKind::kTerminal)
    reasons.add(Code::kUnsupported,
                subject + " is a terminal of the tree's own, whose number one of the copies could have");
  else if (descriptor.kind == DescriptorKind::kPosixQueue)
    reasons.add(Code::kUnsupported, subject + " is a message queue, of which there is one for all of them");
}

void check_process(const store::TreeImage& tree, const store::ProcessImage& process, const CopiesOptions& options,
                   Reasons& reasons, ProgressSink& progress) {
  for (const store::ProcessLock& lock : process.locks) {
    if (!lock.lock.write) continue;
    reasons.add(Code::kUnsupported,
                fmt::format("process {} has a write lock of what its descriptor {} leads to, which one of the copies "
                            "could have",
                            process.pid, lock.fd));
  }
  std::set<int> seen;
  const std::string what = fmt::format("process {}: memory that it has mapped shared", process.pid);
  for (const store::MemoryMap& map : process.maps) {
    const bool writes = map.kind == store::MappingKind::kSharedFile && maps_for_writing(map);
    if (writes && seen.insert(map.file).second)
      check_written(tree.files[static_cast<size_t>(map.file)], what, false, options, reasons, progress);
  }
}

/// One that ends whoever has no handler for it would end each copy at its start.
void check_signal(const store::ProcessImage& root, int signal, Reasons& reasons) {
  if (signal == 0 || signal == SIGCHLD || signal == SIGCONT || signal == SIGURG || signal == SIGWINCH) return;
  const auto is_handled = [&](const store::SignalAction& action) {
    return action.signo == signal && action.handler != 0;
  };
  const auto blocks = [&](const store::Thread& thread) { return (thread.signal_mask >> (signal - 1) & 1) != 0; };
  if (std::any_of(root.actions.begin(), root.actions.end(), is_handled)) return;
  if (std::all_of(root.threads.begin(), root.threads.end(), blocks)) return;
  const char* name = ::sigabbrev_np(signal);
  reasons.add(Code::kUsage, fmt::format("process {} has no handler for signal {} ({}), which would end each copy",
                                        root.pid, signal, name == nullptr ? "?" : name));
}

}  // namespace

void check_copies(const store::TreeImage& tree, const CopiesOptions& options, Reasons& reasons,
                  ProgressSink& progress) {
  for (const store::FileIdentity& file : tree.files) {
    if (state::has_content(file))
      reasons.add(Code::kUnsupported, path_of(file) + ": the image has its content, which each copy would put back");
  }
  if (!tree.namespaces.own.empty() || !tree.namespaces.further.empty())
    reasons.add(Code::kUnsupported, "it is of processes in namespaces of their own, which are restored once");
  for (int number : options.outputs) {
    const bool is_there = std::any_of(tree.descriptors.begin(), tree.descriptors.end(),
                                      [&](const Descriptor& d) { return d.is_open_as(0, number); });
    if (!is_there)
      reasons.add(Code::kNotFound, fmt::format("descriptor {} was not open in process {}", number, tree.root().pid));
  }
  for (const Descriptor& descriptor : tree.descriptors)
    check_descriptor(tree, descriptor, options, reasons, progress);
  for (const store::ProcessImage& process : tree.processes) check_process(tree, process, options, reasons, progress);
  if (!tree.ipc.segments.empty() || !tree.ipc.sets.empty() || !tree.ipc.queues.empty())
    reasons.add(Code::kUnsupported,
                "it has System V shared memory, semaphores or queues, which one of the copies could have");
  if (!tree.devices.empty() || !tree.gpu.used.empty())
    reasons.add(Code::kUnsupported, "it has GPU state, which the copies cannot share");
  check_signal(tree.root(), options.signal, reasons);
}

}  // namespace ckpt::restore
