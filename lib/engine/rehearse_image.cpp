#include "lib/engine/rehearse_image.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netpacket/packet.h>
#include <sys/fanotify.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "lib/state/files/contents.h"
#include "lib/state/files/file_state.h"
#include "lib/state/files/put_back.h"

namespace ckpt::engine {

using store::Descriptor;
using store::DescriptorKind;

namespace {

constexpr int kLoopback = 1;  // the index of "lo" in every network namespace

bool is_regular(const store::TreeImage& tree, int file) {
  return file >= 0 && static_cast<size_t>(file) < tree.files.size() &&
         S_ISREG(tree.files[static_cast<size_t>(file)].mode);
}

int number_of(const Descriptor& descriptor) { return descriptor.fds.empty() ? -1 : descriptor.fds[0].fd; }

bool is_leased_for_writing(const Descriptor& descriptor) {
  return descriptor.lease() != nullptr && descriptor.lease()->write;
}

std::string folder_of(const std::string& path) { return path.substr(0, std::max<size_t>(path.rfind('/'), 1)); }

/// Deleted files, those whose content the image has, and named pipes that are there: their content is not a copy but
/// the pipe itself.
std::set<int> made_aside(const store::TreeImage& tree) {
  std::set<int> out;
  for (size_t i = 0; i < tree.files.size(); ++i) {
    const store::FileIdentity& file = tree.files[i];
    if ((file.deleted && file.other_name.empty()) || S_ISFIFO(file.mode)) out.insert(static_cast<int>(i));
  }
  for (const restore::ContentNames& names : restore::content_names(tree)) out.insert(names.begin(), names.end());
  return out;
}

const std::string& place_of(const store::FileIdentity& file) {
  return file.deleted && !file.other_name.empty() ? file.other_name : file.path;
}

}  // namespace

SealOptions seal_for(const store::TreeImage& tree) {
  SealOptions out;
  std::set<std::string> written, folders;
  const std::set<int> aside = made_aside(tree);
  auto write = [&](int file) {
    if (is_regular(tree, file) && !tree.files[static_cast<size_t>(file)].deleted && aside.count(file) == 0)
      written.insert(tree.files[static_cast<size_t>(file)].path);
  };
  for (const store::ProcessImage& process : tree.processes) {
    for (const store::Thread& thread : process.threads) out.highest = std::max(out.highest, thread.tid);
    out.highest = std::max({out.highest, process.session, process.group});
    for (const store::MemoryMap& map : process.maps) {
      if (map.kind == store::MappingKind::kSharedFile) write(map.file);
    }
  }
  for (const Descriptor& descriptor : tree.descriptors) {
    if ((descriptor.flags & O_ACCMODE) != O_RDONLY) write(descriptor.file);
  }
  for (size_t i = 0; i < tree.files.size(); ++i) {
    const store::FileIdentity& file = tree.files[i];
    const bool is_aside = aside.count(static_cast<int>(i)) != 0;
    if (is_aside) folders.insert(folder_of(place_of(file)));
    else if (file.deleted && !file.other_name.empty()) written.insert(file.other_name);
  }
  out.written.assign(written.begin(), written.end());
  out.folders.assign(folders.begin(), folders.end());
  return out;
}

Result<void> check_leases(const store::TreeImage& tree) {
  for (const Descriptor& descriptor : tree.descriptors) {
    if (!is_leased_for_writing(descriptor)) continue;
    for (const store::ProcessImage& process : tree.processes) {
      for (const store::MemoryMap& map : process.maps) {
        if (map.file >= 0 && map.file == descriptor.file)
          return fail(Code::kUnsupported, tree.files[static_cast<size_t>(map.file)].path,
                      "is mapped and leased for writing: a rehearsal would open it, and break the lease");
      }
    }
  }
  return {};
}

bool names_interface(const store::SocketOption& option) {
  return option.name == "SO_BINDTODEVICE" || option.name.ends_with("_UNICAST_IF") ||
         option.name.ends_with("_MULTICAST_IF");
}

Adjustment::Adjustment(store::TreeImage of_image) : tree(std::move(of_image)) {
  adjust_placement();
  adjust_files();
  adjust_descriptors();
  for (size_t i = 0; i < tree.sockets.size(); ++i) adjust_socket(i);
}

void Adjustment::adjust_placement() {
  tree.packet_filter.clear();
  if (!tree.devices.empty() || !tree.gpu.driver.empty()) leave_out("the state of its GPUs");
  tree.devices.clear(), tree.gpu = {};
  bool groups = false, locks = false;
  for (store::ProcessImage& process : tree.processes) {
    groups |= !process.cgroups.empty();
    locks |= !process.locks.empty();
    process.cgroups.clear(), process.locks.clear();
    process.gpu_thread = 0;
    for (store::Thread& thread : process.threads) thread.cgroups.clear();
  }
  for (Descriptor& descriptor : tree.descriptors) {
    adjust_lease(descriptor);
    locks |= !descriptor.locks.empty();
    descriptor.locks.clear();
  }
  if (groups) leave_out("its control groups");
  if (locks) leave_out("its file locks");
  for (store::PosixQueue& queue : tree.posix_queues) {
    if (queue.deleted) continue;
    if (queue.waiting != 0) leave_out(fmt::format("what waits in the message queue {}", queue.name));
    queue.deleted = true, queue.waiting = 0;
  }
}

void Adjustment::adjust_files() {
  // What nobody has open was added last.
  const std::vector<restore::FileUse> uses = restore::uses_of_files(tree);
  while (!tree.files.empty() && state::has_content(tree.files.back()) && !uses[tree.files.size() - 1].needed) {
    leave_out("the content of " + tree.files.back().path);
    tree.files.pop_back();
  }
  const std::set<int> aside = made_aside(tree);
  for (size_t i = 0; i < tree.files.size(); ++i) {
    store::FileIdentity& file = tree.files[i];
    if (aside.count(static_cast<int>(i)) != 0) {
      file.path = kSealedScratch + place_of(file);
      file.deleted = true;
      file.other_name.clear();
    } else if (file.deleted) {
      leave_out(fmt::format("the deleted name {} of {}", file.path, file.other_name));
      file.path = std::exchange(file.other_name, "");
      file.deleted = false;
    }
  }
}

/// `file`: index of what becomes /dev/null.
void Adjustment::replace_by_null(Descriptor& descriptor, int file) {
  store::FileIdentity& null = tree.files[static_cast<size_t>(file)];
  null = {};
  null.path = "/dev/null", null.mode = S_IFCHR | 0666;
  descriptor.kind = DescriptorKind::kDevice, descriptor.file = file, descriptor.external.clear();
  descriptor.written_by_process = false;
  descriptor.owner_type = descriptor.owner_pid = descriptor.owner_signal = 0;
  descriptor.flags &= ~O_ASYNC;
}

/// Who opens a file that is leased for writing breaks the lease, be it that of the process which the image is of.
void Adjustment::adjust_lease(Descriptor& descriptor) {
  if (descriptor.lease() == nullptr) return;
  descriptor.owner_type = descriptor.owner_pid = descriptor.owner_signal = 0;
  if (!is_leased_for_writing(descriptor)) return;
  leave_out(fmt::format("descriptor {}: a file whose lease would be broken by opening it", number_of(descriptor)));
  replace_by_null(descriptor, descriptor.file);
}

void Adjustment::adjust_descriptors() {
  int null = -1;
  for (Descriptor& descriptor : tree.descriptors) {
    if (descriptor.kind == DescriptorKind::kExternal) {
      leave_out(fmt::format("descriptor {}: {}, an external resource", number_of(descriptor), descriptor.external));
      if (null < 0) null = static_cast<int>(tree.files.size()), tree.files.emplace_back();
      replace_by_null(descriptor, null);
    }
    if (descriptor.kind == DescriptorKind::kFanotify) {
      store::Fanotify& watch = tree.fanotifies[static_cast<size_t>(descriptor.object)];
      // Who opens such a file waits until the group answers.
      if ((watch.flags & (FAN_CLASS_CONTENT | FAN_CLASS_PRE_CONTENT)) == 0 || watch.marks.empty()) continue;
      leave_out("the marks of a fanotify group that is asked for permission");
      watch.marks.clear();
    }
  }
}

void Adjustment::adjust_socket(size_t index) {
  store::Socket& socket = tree.sockets[index];
  if (socket.state == store::SocketState::kExternal) {
    leave_out(fmt::format("unix socket {}: connected to one outside", socket.inode));
    strange_sockets.insert(index);
    socket.state = store::SocketState::kUnconnected;
    socket.peer_name.clear(), socket.messages.clear();
    socket.content_size = 0;
  }
  if (socket.family == AF_UNIX && !socket.file.path.empty() && !socket.file.deleted) {
    leave_out(fmt::format("the file of a unix socket, {}", socket.file.path));
    socket.file = {};
  }
  if (socket.state == store::SocketState::kConnecting) {
    leave_out(fmt::format("TCP socket {}: the connection that it is making", socket.inode));
    strange_sockets.insert(index);
  }
  constexpr int kEstablished = 1;
  if (socket.tcp.state > kEstablished) {
    leave_out(fmt::format("TCP socket {}: the state of a connection that ends", socket.inode));
    strange_sockets.insert(index);
  }
  for (store::SocketMembership& membership : socket.memberships) {
    if (membership.interface > kLoopback) leave_out(fmt::format("socket {}: the interface of a group", socket.inode));
    if (membership.interface != 0) membership.interface = kLoopback;
  }
  auto is_set = [](const store::SocketOption& option) {
    return std::any_of(option.value.begin(), option.value.end(), [](uint8_t byte) { return byte != 0; });
  };
  for (const store::SocketOption& option : socket.options) {
    if (names_interface(option) && is_set(option)) leave_out(fmt::format("socket {}: {}", socket.inode, option.name));
  }
  std::erase_if(socket.options, names_interface);
  if (socket.family != AF_PACKET || socket.name.size() < offsetof(sockaddr_ll, sll_ifindex) + sizeof(int)) return;
  int interface = 0;
  std::memcpy(&interface, socket.name.data() + offsetof(sockaddr_ll, sll_ifindex), sizeof interface);
  if (interface <= kLoopback) return;
  leave_out(fmt::format("packet socket {}: its interface", socket.inode));
  strange_sockets.insert(index);
  std::memcpy(socket.name.data() + offsetof(sockaddr_ll, sll_ifindex), &kLoopback, sizeof kLoopback);
}

}  // namespace ckpt::engine
