#include "lib/engine/rehearse_compare.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>

#include "lib/base/hex.h"
#include "lib/base/text.h"
#include "lib/engine/rehearse_image.h"
#include "lib/store/manifest_fields.h"

namespace ckpt::engine {

namespace {

using store::TreeImage;

// What is passed over, and the one order of what has none.

/// The files in one order, each once; the indices follow. A file without a name is known by its folder.
void order_files(TreeImage& tree) {
  std::map<std::string, int> places;
  std::vector<store::FileIdentity> files;
  std::vector<int> where;
  for (store::FileIdentity& file : tree.files) {
    const size_t slash = file.path.rfind('/');
    if (file.deleted && file.path.substr(slash + 1) == fmt::format("#{}", file.inode)) file.path.resize(slash + 1);
    // Others may write to it meanwhile; restore has its own rule for how far it may have changed.
    if (!file.deleted) file.size = 0, file.mtime_ns = 0;
    else file.device = file.inode = 0;
    if (!S_ISREG(file.mode) || file.path.starts_with("/proc/"))
      file.mtime_ns = 0, file.size = 0, file.device = 0, file.inode = 0;
    file.space = -1, file.build_id.clear();
    where.push_back(places.try_emplace(file.path + (file.deleted ? " (deleted)" : ""), static_cast<int>(places.size()))
                        .first->second);
    if (static_cast<size_t>(where.back()) == files.size()) files.push_back(std::move(file));
  }
  std::vector<int> order(files.size());
  int next = 0;
  for (const auto& [name, place] : places) order[static_cast<size_t>(place)] = next++;
  tree.files.resize(files.size());
  for (size_t i = 0; i < files.size(); ++i) tree.files[static_cast<size_t>(order[i])] = std::move(files[i]);
  auto follow = [&](int& file) {
    if (file >= 0) file = order[static_cast<size_t>(where[static_cast<size_t>(file)])];
  };
  for (store::ProcessImage& process : tree.processes) {
    follow(process.exe), follow(process.cwd), follow(process.root);
    for (store::MemoryMap& map : process.maps) {
      if (map.file >= 0) map.name.clear();
      follow(map.file);
    }
  }
  for (store::Descriptor& descriptor : tree.descriptors) follow(descriptor.file);
}

/// Neighbours that the kernel would merge may be one or two.
void merge_maps(std::vector<store::MemoryMap>& maps) {
  std::vector<store::MemoryMap> out;
  for (store::MemoryMap& map : maps) {
    std::vector<std::string> flags = map.flags.names();
    std::sort(flags.begin(), flags.end());
    map.flags = {};
    for (const std::string& flag : flags) {
      // "ac" is how the kernel accounts for it, which depends on the order of mmap and mprotect.
      if (flag != "ac") map.flags.add(flag);
    }
    if (out.empty() || out.back().end != map.start) {
      out.push_back(std::move(map));
      continue;
    }
    store::MemoryMap next = map, &last = out.back();
    const bool of_object = map.file >= 0 || map.shared_memory >= 0;
    next.start = last.start, next.end = last.end, next.guards = last.guards;
    next.file_offset =
        of_object && map.file_offset != last.file_offset + (last.end - last.start) ? map.file_offset : last.file_offset;
    if (next == last) last.end = map.end, last.guards.insert(last.guards.end(), map.guards.begin(), map.guards.end());
    else out.push_back(std::move(map));
  }
  for (store::MemoryMap& map : out) {
    if (map.file < 0 && map.shared_memory < 0) map.file_offset = 0;
    std::vector<std::pair<uint64_t, uint64_t>> guards;
    for (const auto& guard : map.guards) {
      if (!guards.empty() && guards.back().second == guard.first) guards.back().second = guard.second;
      else guards.push_back(guard);
    }
    map.guards = std::move(guards);
  }
  maps = std::move(out);
}

/// Timers run while the processes are looked at: what is left of their time, and the signals of those that expire.
void pass_over_time(store::ProcessImage& process) {
  bool any = false;
  for (auto& timer : process.interval_timers) any = true, timer.value_us = 0;
  for (auto& timer : process.posix_timers) any = true, timer.value_ns = 0;
  auto of_timer = [](const store::QueuedSignal& signal) {
    int code = 0;
    std::memcpy(&code, signal.siginfo.data() + offsetof(siginfo_t, si_code), sizeof code);
    return code == SI_TIMER ||
           (code == SI_KERNEL && (signal.signo == SIGALRM || signal.signo == SIGVTALRM || signal.signo == SIGPROF));
  };
  if (any) std::erase_if(process.pending, of_timer);
  std::erase_if(process.interval_timers, [](const auto& timer) { return timer.interval_us == 0; });
  for (store::Thread& thread : process.threads) {
    thread.xstate_offset = 0, thread.sleep_left_ns = 0;
    if (any) std::erase_if(thread.pending, of_timer);
  }
}

/// A SIGSTOP that waits is sent as the process is let go.
void pass_over_waiting_stops(store::ProcessImage& process) {
  auto is_stop = [](const store::QueuedSignal& signal) { return signal.signo == SIGSTOP; };
  std::erase_if(process.pending, is_stop);
  for (store::Thread& thread : process.threads) std::erase_if(thread.pending, is_stop);
}

/// What the kernel adds to whatever is opened by a path, and what says how a file came to be.
void pass_over_flags(store::Descriptor& descriptor) {
  constexpr int kLargeFile = 0100000, kTemporary = O_TMPFILE & ~O_DIRECTORY;
  if (descriptor.kind != store::DescriptorKind::kFile) descriptor.flags &= ~kLargeFile;
  if ((descriptor.flags & kTemporary) != 0) descriptor.flags &= ~O_TMPFILE;
}

/// The kernel notes every process that used a queue last; ckpt itself is such a one.
void pass_over_users(TreeImage& tree) {
  auto is_inside = [&](int pid) {
    return std::any_of(tree.processes.begin(), tree.processes.end(),
                       [&](const auto& process) { return process.pid == pid; });
  };
  for (store::IpcQueue& queue : tree.ipc.queues) {
    for (int* pid : {&queue.sender, &queue.receiver}) {
      if (!is_inside(*pid)) *pid = 0;
    }
  }
}

void pass_over(TreeImage& tree) {
  order_files(tree);
  pass_over_users(tree);
  for (store::ProcessImage& process : tree.processes) {
    process.space = -1;
    process.cgroups.clear(), process.locks.clear();
    for (store::Thread& thread : process.threads) thread.cgroups.clear();
    merge_maps(process.maps);
    pass_over_time(process);
    pass_over_waiting_stops(process);
  }
  if (!tree.processes.empty()) tree.processes[0].parent_pid = 0;
  for (store::Descriptor& descriptor : tree.descriptors) {
    descriptor.timerfd.value_ns = 0, descriptor.timerfd.ticks = 0;
    descriptor.locks.clear();
    pass_over_flags(descriptor);
    auto key = [](const store::EpollEntry& entry) {
      return std::tuple(entry.process, entry.target_fd, entry.descriptor, entry.data);
    };
    // One that was told once and is not armed is armed for errors by being added.
    for (store::EpollEntry& entry : descriptor.epoll.entries)
      entry.events &= ~static_cast<uint32_t>(EPOLLERR | EPOLLHUP);
    std::sort(descriptor.epoll.entries.begin(), descriptor.epoll.entries.end(),
              [&](const auto& a, const auto& b) { return key(a) < key(b); });
  }
  for (store::Pipe& pipe : tree.pipes) pipe.content_offset = 0;
  for (store::IoUring& ring : tree.io_urings) ring.content_offset = 0;
  for (store::AioContext& context : tree.aio_contexts) context.content_offset = 0;
  for (store::SharedMemory& memory : tree.shared_memory) {
    if (memory.kind != store::SharedMemory::Kind::kSystemV) memory.inode = 0;
    memory.space = -1;
  }
  for (store::Socket& socket : tree.sockets) {
    socket.inode = 0, socket.content_offset = 0, socket.file = {};
    socket.foreign_address = false;  // the sealed network has every address
    socket.tcp.timestamp = 0;
    socket.tcp.window_sequence = 0, socket.tcp.receive_memory = 0;
    socket.tcp.unsent_size = 0;  // has been sent by then, and waits for an answer
    std::erase_if(socket.options, names_interface);
  }
}

/// A call that must run again from the start stands before its instruction then.
void repeat_calls(TreeImage& image) {
  constexpr size_t kRax = 10, kOrigRax = 15, kRip = 16, kSyscallSize = 2;
  for (store::ProcessImage& process : image.processes) {
    for (store::Thread& thread : process.threads) {
      if (thread.restart != store::RestartKind::kRepeat) continue;
      thread.restart = store::RestartKind::kNone;
      thread.regs.value[kRax] = std::exchange(thread.regs.value[kOrigRax], ~uint64_t{0});
      thread.regs.value[kRip] -= kSyscallSize;
    }
  }
}

/// A connection's receive buffer may have been made larger for what was promised to its peer.
void pass_over_room(const store::Socket& was, store::Socket& is) {
  auto size_of = [](const store::SocketOption& option) {
    int size = 0;
    if (option.value.size() == sizeof size) std::memcpy(&size, option.value.data(), sizeof size);
    return size;
  };
  for (const store::SocketOption& option : was.options) {
    for (store::SocketOption& other : is.options) {
      if (option.name == "SO_RCVBUF" && other.name == option.name && size_of(other) > size_of(option))
        other.value = option.value;
    }
  }
}

/// The kernel turns IPV6_V6ONLY on in a socket that bind(2) gives an address of IPv6, not in one that got it by
/// connect(2) or accept(2). Nothing else differs: no packet of IPv4 reaches such an address.
void pass_over_binding(const store::Socket& was, store::Socket& is) {
  sockaddr_in6 name{};
  std::memcpy(&name, was.name.data(), std::min(was.name.size(), sizeof name));
  if (name.sin6_family != AF_INET6 || IN6_IS_ADDR_UNSPECIFIED(&name.sin6_addr)) return;
  auto of = [](const store::Socket& socket) {
    return std::find_if(socket.options.begin(), socket.options.end(),
                        [](const auto& option) { return option.name == "IPV6_V6ONLY"; });
  };
  const auto before = of(was), after = of(is);
  if (before != was.options.end() && after != is.options.end())
    is.options[static_cast<size_t>(after - is.options.begin())].value = before->value;
}

/// Where more than one state is right.
void forgive(const TreeImage& image, TreeImage& made) {
  for (size_t i = 0; i < std::min(image.processes.size(), made.processes.size()); ++i) {
    for (size_t t = 0; t < std::min(image.processes[i].threads.size(), made.processes[i].threads.size()); ++t) {
      const store::Thread& was = image.processes[i].threads[t];
      store::Thread& is = made.processes[i].threads[t];
      if (was.personality < 0) is.personality = was.personality;  // an older image does not tell
      constexpr size_t kRax = 10, kOrigRax = 15;
      // A sleep that had nothing left is over.
      if (was.restart != store::RestartKind::kSleepLeft || is.restart != store::RestartKind::kNone ||
          is.regs.value[kRax] != 0)
        continue;
      is.restart = was.restart;
      for (size_t at : {kRax, kOrigRax}) is.regs.value[at] = was.regs.value[at];
    }
  }
  for (size_t i = 0; i < std::min(image.sockets.size(), made.sockets.size()); ++i) {
    pass_over_binding(image.sockets[i], made.sockets[i]);
    const store::TcpConnection& was = image.sockets[i].tcp;
    store::TcpConnection& is = made.sockets[i].tcp;
    if (was.state != 0) pass_over_room(image.sockets[i], made.sockets[i]);
    // What may be sent ends no earlier: more is no harm.
    const auto further = static_cast<int32_t>(is.receive_window_update + is.receive_window -
                                              (was.receive_window_update + was.receive_window));
    if (further >= 0) is.receive_window_update = was.receive_window_update, is.receive_window = was.receive_window;
  }
}

/// Where the image has something from outside of the tree there is nothing to compare.
void pass_over_outside(const TreeImage& image, TreeImage& left, TreeImage& right) {
  for (size_t i = 0; i < std::min(left.processes.size(), right.processes.size()); ++i) {
    const store::ProcessImage& was = image.processes[i];
    for (store::ProcessImage* process : {&left.processes[i], &right.processes[i]}) {
      if (was.outside_session) process->session = 0, process->terminal = 0;
      if (was.outside_group) process->group = 0;
      process->outside_session = process->outside_group = false;
    }
  }
  if (!left.processes.empty() && !right.processes.empty())
    right.processes[0].stopped = left.processes[0].stopped;  // it stops as it is let go
}

// The records as trees of names and values.

struct Node {
  std::string name, value;
  std::vector<Node> children;
};

class NodeOut {
 public:
  template <class T>
  using Of = const T&;

  explicit NodeOut(std::vector<Node>& out) : out_(out) {}
  NodeOut& optional() { return *this; }

  template <class I>
  void number(const char* name, I value, int64_t = 0, int64_t = 0) { leaf(name, std::to_string(value)); }
  void hex(const char* name, uint64_t value) { leaf(name, fmt::format("{:#x}", value)); }
  void flag(const char* name, bool value) { leaf(name, value ? "yes" : "no"); }
  void text(const char* name, const std::string& value) { leaf(name, '"' + value + '"'); }
  void octets(const char* name, const std::vector<uint8_t>& value, size_t, size_t) {
    leaf(name, bytes_to_hex(std::as_bytes(std::span(value))));
  }
  template <class C>
  void numbers(const char* name, const C& values) {
    leaf(name, fmt::format("{}", joined(values, [](auto v) { return std::to_string(v); })));
  }
  void hexes(const char* name, const std::vector<uint64_t>& values) {
    leaf(name, joined(values, [](uint64_t v) { return fmt::format("{:#x}", v); }));
  }
  void texts(const char* name, const store::VmFlags& flags) { texts(name, flags.names()); }
  void texts(const char* name, const std::vector<std::string>& values) {
    leaf(name, joined(values, [](const std::string& v) { return v; }));
  }
  template <class E, size_t N>
  void choice(const char* name, E value, const std::array<const char*, N>& names) {
    const auto index = static_cast<size_t>(value);
    leaf(name, index < N ? names[index] : std::to_string(index));
  }
  template <class T>
  void object(const char* name, const T& value) {
    Node& node = out_.emplace_back();
    node.name = name;
    NodeOut sub(node.children);
    describe<NodeOut>(sub, value);
  }
  template <class T, class F>
  void list(const char* name, const std::vector<T>& values, F one) {
    for (size_t i = 0; i < values.size(); ++i) {
      Node& node = out_.emplace_back();
      node.name = label(name, values[i], i);
      NodeOut sub(node.children);
      one(sub, values[i]);
    }
  }
  template <class T>
  void list(const char* name, const std::vector<T>& values) {
    list(name, values, [](NodeOut& sub, const T& value) { describe<NodeOut>(sub, value); });
  }

 private:
  template <class C, class F>
  static std::string joined(const C& values, F text) {
    std::string out;
    for (const auto& value : values) out += (out.empty() ? "" : " ") + text(value);
    return out.empty() ? "none" : out;
  }
  template <class T>
  static std::string label(const char* name, const T&, size_t index) { return fmt::format("{}[{}]", name, index); }
  static std::string label(const char*, const store::ProcessImage& process, size_t) {
    return fmt::format("process {}", process.pid);
  }
  static std::string label(const char*, const store::Thread& thread, size_t) {
    return fmt::format("thread {}", thread.tid);
  }
  static std::string label(const char*, const store::MemoryMap& map, size_t) {
    return fmt::format("mapping {:x}", map.start);
  }
  static std::string label(const char*, const store::FileIdentity& file, size_t) { return "file " + file.path; }
  static std::string label(const char*, const store::SignalAction& action, size_t) {
    return fmt::format("action of signal {}", action.signo);
  }
  static std::string label(const char*, const store::PosixTimer& timer, size_t) {
    return fmt::format("timer {}", timer.id);
  }
  static std::string label(const char*, const store::ResourceLimit& limit, size_t) {
    return fmt::format("resource limit {}", limit.resource);
  }
  static std::string label(const char*, const store::SocketOption& option, size_t) { return option.name; }
  static std::string label(const char* name, const store::Descriptor& descriptor, size_t index) {
    if (descriptor.fds.empty()) return fmt::format("{}[{}]", name, index);
    return fmt::format("descriptor {} of process number {}", descriptor.fds[0].fd, descriptor.fds[0].process);
  }
  void leaf(const char* name, std::string value) { out_.push_back({name, std::move(value), {}}); }

  std::vector<Node>& out_;
};

constexpr size_t kMostShown = 200;

std::string shown(const std::string& value) {
  return value.size() <= kMostShown ? value : value.substr(0, kMostShown) + "..";
}

void compare(const std::vector<Node>& image, const std::vector<Node>& made, const std::string& where,
             std::vector<std::string>& out) {
  std::multimap<std::string, const Node*> left;
  for (const Node& node : made) left.emplace(node.name, &node);
  for (const Node& node : image) {
    const std::string name = where.empty() ? node.name : where + ": " + node.name;
    auto other = left.find(node.name);
    if (other == left.end()) {
      out.push_back(name + ": not there after the restore");
      continue;
    }
    if (node.value != other->second->value)
      out.push_back(fmt::format("{}: {} in the image, {} after the restore", name, shown(node.value),
                                shown(other->second->value)));
    compare(node.children, other->second->children, name, out);
    left.erase(other);
  }
  for (const auto& [name, node] : left)
    out.push_back((where.empty() ? name : where + ": " + name) + ": not in the image, but there after the restore");
}

/// Processes may have tens of thousands of mappings: only those that differ become nodes.
void drop_equal(std::vector<store::MemoryMap>& image, std::vector<store::MemoryMap>& made) {
  std::vector<store::MemoryMap> left, right;
  auto b = made.begin();
  for (auto a = image.begin(); a != image.end(); ++a) {
    while (b != made.end() && b->start < a->start) right.push_back(std::move(*b++));
    if (b != made.end() && *a == *b) ++b;
    else left.push_back(std::move(*a));
  }
  std::move(b, made.end(), std::back_inserter(right));
  image = std::move(left), made = std::move(right);
}

}  // namespace

std::string name_of(const store::ProcessImage& process) {
  return fmt::format("process {} ({})", process.pid, process.threads.empty() ? "?" : process.threads[0].comm);
}

std::vector<std::string> compare_trees(TreeImage image, TreeImage made, const std::set<size_t>& strange) {
  const TreeImage before = image;
  repeat_calls(image);
  pass_over(image);
  pass_over(made);
  forgive(image, made);
  pass_over_outside(before, image, made);
  for (size_t i = 0; i < std::min(image.processes.size(), made.processes.size()); ++i)
    drop_equal(image.processes[i].maps, made.processes[i].maps);
  for (size_t i : strange) {
    if (i < image.sockets.size() && i < made.sockets.size()) made.sockets[i] = image.sockets[i];
  }
  std::vector<Node> left, right;
  NodeOut left_out(left), right_out(right);
  describe<NodeOut>(left_out, image);
  describe<NodeOut>(right_out, made);
  std::vector<std::string> out;
  compare(left, right, "", out);
  return out;
}

}  // namespace ckpt::engine
