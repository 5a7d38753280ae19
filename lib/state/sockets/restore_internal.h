// The parts of make_sockets, a file each.
#pragma once

#include <sys/socket.h>

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/proc/sock_diag.h"
#include "lib/proc/socket_name.h"
#include "lib/state/run_as.h"
#include "lib/state/sockets/restore.h"

namespace ckpt::restore {

using proc::is_abstract;
using proc::name_text;
using proc::port_of;
using proc::raw_address;
using proc::SocketName;
using proc::unix_name;

/// "unix socket 123 (/run/x)", for messages.
std::string subject_of(const store::Socket& socket);

Result<UniqueFd> open_socket(int family, int type, int protocol);
/// Sets those options that differ from what the socket has, late or early ones, and with the early ones its owner and
/// mode. Its filter comes early where its queue is empty. `without`: names that are left out.
Result<void> set_options(int fd, const store::Socket& socket, bool late, ProgressSink& notes,
                         std::span<const std::string_view> without = {});
/// Bytes of memory that the receive queue takes.
uint32_t receive_memory(int fd);
/// As SO_RCVBUF tells it.
Result<void> set_receive_buffer(int fd, uint64_t size);
/// Room for what is about to be queued, whatever the limit of the system.
void widen_buffers(int fd, uint64_t bytes);
Result<void> shut_down(int fd, const store::Socket& socket);

/// Everything that make_sockets works on.
struct SocketWork {
  const std::vector<store::Socket>& records;
  const SocketSources& sources;
  Reasons& reasons;
  ProgressSink& notes;
  std::vector<UniqueFd>& fds;
  std::map<int, size_t> by_descriptor;  ///< open file description -> index of its record
  std::set<size_t> failed;              ///< a reason was given

  void fail(size_t index, const Error& error);
  /// Gives the reason when there is one. True: all is well.
  bool check(size_t index, const Result<void>& result);
  bool is_usable(size_t index) const { return failed.count(index) == 0 && static_cast<bool>(fds[index]); }
  void note(const store::Socket& socket, const std::string& text);
  /// Says when a process that calls for another did not get its number.
  void note_number(const store::Socket& socket, const CallResult& result, int pid);
  /// A descriptor in ckpt for an open file description, or -1.
  int right(int descriptor) const;
  /// Of the owner of a socket or of its file.
  Rights rights_of(uint32_t uid, uint32_t gid) const;
};

/// Binds unix sockets.
class UnixNames {
 public:
  explicit UnixNames(SocketWork& work) : work_(work) {}
  ~UnixNames();
  /// To the record's own name: the file where it was, with mode and owner; one that is gone, as a name alone.
  Result<void> bind_own(int fd, const store::Socket& socket);
  /// The name alone: the file lies in a folder of ckpt's that goes away. An abstract name is taken as it is.
  Result<void> bind_name(int fd, const SocketName& name);

 private:
  struct Place;
  Result<void> bind_file(int fd, const store::Socket& socket);
  /// Nobody's socket file there is removed; anything else is an obstacle.
  Result<void> clear_place(const Place& place);
  Result<void> settle(int fd, const store::Socket& socket, const Place& place);
  Result<std::string> scratch_folder();

  SocketWork& work_;
  std::vector<std::string> folders_;
};

/// Turns the name of `target`, a bound unix socket, into one that leads to it wherever its file is by now, while the
/// result lives. -1: the name is left as it is.
Result<UniqueFd> reach_unix(int target, SocketName& name);
/// Connects to `target` (-1: to whom the name leads) as `who`.
Result<CallResult> connect_unix(int fd, int target, SocketName name, const store::SocketCredentials& who);

/// To whom the name leads, with these rights. Negative: -errno.
Result<int> connect_with(const Rights& rights, int fd, const SocketName& name);

/// Sends one message with its credentials and descriptors. `sender` is connected, or sends to `target`, a datagram
/// socket of the tree (-1: none) with the name `target_name`.
struct UnixRoute {
  int sender = -1;
  int target = -1;
  SocketName target_name;
};
Result<void> send_unix(SocketWork& work, const store::Socket& record, const store::SocketMessage& message,
                       ByteSpan bytes, const UnixRoute& route);

class UnixBuilder {
 public:
  explicit UnixBuilder(SocketWork& work) : work_(work), names_(work) {}
  void run();

 private:
  // Connections: sockets_connect.cpp
  void make_connections();
  Result<void> make_connection(size_t a, size_t b);
  Result<void> make_orphan(size_t index);
  Result<void> make_pair(const store::Socket& record, UniqueFd& one, UniqueFd& other);
  Result<int> stand_in_listener(int type, const SocketName& name, const store::Socket& client);
  struct Accepted {
    const store::Socket& record;  ///< its type, name and peer credentials
    UniqueFd& fd;
  };
  Result<void> connect_pair(const store::Socket& client, UniqueFd& client_fd, const Accepted& accepted);
  bool is_accepted_side(const store::Socket& socket, const store::Socket& other) const;

  // Everything else.
  void make_others();
  Result<void> make_other(size_t index);
  void name_all();
  void fill_all();
  Result<void> fill(size_t index);
  Result<UnixRoute> route_of(size_t index, const store::SocketMessage& message);
  Result<int> datagram_sender(const store::Socket& record, const SocketName& from);
  void connect_datagrams();
  void connect_datagram_in_order(size_t index);
  Result<void> connect_datagram(size_t index);
  Result<void> connect_outside(size_t index);
  void listen_all();
  Result<void> listen_one(size_t index);
  void finish_all();
  Result<void> finish_one(size_t index);

  bool is_unix(size_t index) const { return work_.records[index].family == AF_UNIX; }
  bool is_mutual(size_t index) const;

  struct Listener {
    int type;
    SocketName name;
    store::SocketCredentials owner;
    UniqueFd fd;
  };
  SocketWork& work_;
  UnixNames names_;
  std::vector<Listener> listeners_;
  std::map<size_t, UniqueFd> ends_;           ///< other ends that are closed again, by the index of the survivor
  std::set<size_t> named_;                    ///< have their name from the connection
  std::set<size_t> joined_;                   ///< datagram sockets that are connected already
  std::map<SocketName, UniqueFd> stand_ins_;  ///< senders that are gone, by name
};

class InetBuilder {
 public:
  InetBuilder(SocketWork& work, Sockets& out) : work_(work), out_(out) {}
  void run();

 private:
  Result<void> make_plain(size_t index);
  Result<void> fill(size_t index);
  Result<void> refuse_again(size_t index);
  Result<void> make_listening(size_t index);
  Result<void> make_bound(size_t index);
  Result<void> make_closed(size_t index);
  Result<void> end_connection(size_t index);
  Result<void> make_established(size_t index);
  bool shares_port(size_t index) const;
  Result<void> turn_on(size_t index, int level, int option);
  Result<void> turn_on_for_name(size_t index);
  Result<void> make_connecting(size_t index);
  Result<void> bind_as_then(size_t index);
  void put_back();

  struct TurnedOn {
    size_t index;
    int level, option, before;
  };
  SocketWork& work_;
  Sockets& out_;
  std::vector<TurnedOn> turned_on_;
};

}  // namespace ckpt::restore
