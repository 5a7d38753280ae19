// The descriptors of a tree. What is behind each of them is described in a file for its kind: inventory_files.cpp,
// inventory_pipes.cpp, inventory_anonymous.cpp, inventory_endpoints.cpp.
#pragma once

#include <sys/stat.h>

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/capture/inventory_internal.h"
#include "lib/capture/sockets.h"
#include "lib/capture/terminals.h"
#include "lib/capture/watches.h"

namespace ckpt::capture {

inline bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

/// A descriptor of a process of the tree, or one of ckpt's own that was found on its way.
struct Place {
  size_t process = 0;
  int pid = 0, pidfd = -1;
  int fd = 0;
  std::string link;
  proc::FdInfo info;
  size_t first = 0;  ///< the first place with the same open file description, as an index of the list
  std::optional<int> description;  ///< of a first one: index of image.descriptors, -1: it cannot be carried
};

class DescriptorInventory {
 public:
  explicit DescriptorInventory(Walk& walk);
  Result<void> run();

 private:
  using Descriptor = store::Descriptor;

  void block(const Place& place, std::string what, std::string flag = "") {
    out_.block(place.process, "descriptor " + std::to_string(place.fd), std::move(what), std::move(flag));
  }

  void list();
  void find_shared();
  std::vector<bool> sort_by_kernel(std::vector<size_t>& group, bool sorted_before) const;
  void join_group(size_t at);
  Result<void> add(size_t at);
  Result<int> find_or_describe(size_t at);
  Result<void> take_locks(const Place& place, int index);
  /// Fills kind and state. False: a blocker was noted instead. So do the `take_` below that say bool.
  Result<bool> classify(const Place& place, Descriptor& d);

  Result<struct stat> stat_behind(const Place& place);
  Result<bool> take_file(const Place& place, const struct stat& st, Descriptor& d);
  Result<bool> take_proc_file(const Place& place, const struct stat& st, Descriptor& d);
  Result<bool> take_device(const Place& place, const struct stat& st, Descriptor& d);
  Result<bool> take_external(const Place& place, std::string name, const std::string& what, Descriptor& d);
  Result<bool> is_posix_queue(const Place& place, const struct stat& st);
  Result<bool> take_posix_queue(const Place& place, Descriptor& d);

  Result<bool> take_pipe(const Place& place, Descriptor& d);
  Result<bool> take_fifo(const Place& place, const struct stat& st, Descriptor& d);
  Result<bool> join_pipe(const Place& place, std::pair<uint64_t, uint64_t> inode, Descriptor& d);
  Result<void> read_pipe(const Place& place, size_t index);
  Result<void> settle_pipes();
  bool other_end_closed(const Place& place) const;

  Result<bool> take_anonymous(const Place& place, Descriptor& d);
  Result<bool> take_timer(const Place& place, Descriptor& d);
  Result<bool> take_watches(const Place& place, bool inotify, Descriptor& d);
  std::vector<std::string> known_folders() const;
  Result<bool> take_pidfd(const Place& place, Descriptor& d);
  bool is_of_tree(int number) const;
  void check_epoll_targets();
  bool watches(const store::FdSlot& set, const store::FdSlot& of, int target, uint32_t order, int fd) const;
  int find_watched(const store::FdSlot& set, int target, uint32_t order) const;

  Result<void> add_terminal(const Place& place, int index);
  Result<void> take_terminals();
  void add_socket(const Place& place, UniqueFd theirs, int index);
  Result<int> take_right(UniqueFd fd);
  Result<void> take_sockets();
  /// While the tree runs its queues are not looked into: what waits in one may be a descriptor.
  bool may_be_on_its_way() const { return !walk_.options.frozen && sockets_hold_data_; }

  struct OpenTerminal {
    Place place;
    int descriptor;
    UniqueFd fd;
  };
  struct PipeState {
    int index;
    bool read;  ///< its content is here
  };

  Walk& walk_;
  Inventory& out_;
  std::deque<Place> places_;
  /// Places that may have one description (the same link), as indices; groups of several in the order that kcmp(2) gives.
  std::unordered_map<std::string, std::vector<size_t>> groups_;
  std::map<std::string, struct stat> stats_;  ///< by link, inode and mount
  std::map<uint64_t, bool> queue_devices_;    ///< whether a device is a file system of POSIX queues
  std::map<int, Place> pipe_places_;          ///< a descriptor of each pipe
  std::map<std::pair<uint64_t, uint64_t>, PipeState> pipes_;  ///< by device and inode
  std::map<uint64_t, int> queues_;                            ///< POSIX queues, by inode
  std::vector<OpenTerminal> terminals_;
  SocketCapture sockets_;
  size_t sockets_added_ = 0;
  bool sockets_hold_data_ = false;
  std::map<int, std::string> names_;  ///< of processes, for messages
  std::optional<FileFinder> finder_;
  UniqueFd own_pidfd_;
  std::vector<UniqueFd> rights_;  ///< found in flight
};

}  // namespace ckpt::capture
